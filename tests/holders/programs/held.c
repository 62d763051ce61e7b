// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// held CASE SECONDS KEEPER: after so long, blocks are lost or held in one way that C has, beside a table of what is kept.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 3000

struct entry {
    struct entry *next;
    char body[250];
};

// Not static: what is never read would not be stored.
extern struct entry *sessions;
extern char *table[COUNT], *newest;
struct entry *sessions;
char *table[COUNT], *newest;

__attribute__((noinline)) static void remember(void) {
    for (int i = 0; i < COUNT; i++)
        table[i] = memset(malloc(400), 1, 400);
}

__attribute__((noinline)) static void kept_by_a_list(void) {
    for (int i = 0; i < COUNT; i++) {
        struct entry *made = memset(malloc(sizeof *made), 1, sizeof *made);
        made->next = sessions;
        sessions = made;
    }
}

__attribute__((noinline)) static void lost_by_overwrite(void) {
    for (int i = 0; i < COUNT; i++)
        newest = memset(malloc(300), 1, 300);
}

// What a plugin's variables hold is lost once the plugin is closed.
__attribute__((noinline)) static void with_plugin(const char *path, int close) {
    void *plugin = dlopen(path, RTLD_NOW);
    void (*keep)(void) = plugin ? (void (*)(void))dlsym(plugin, "keep") : NULL;
    if (!keep)
        _exit(2);
    keep();
    if (close)
        dlclose(plugin);
}

static void clear_stack(void) {   // of what it held before
    volatile char deep[32768];
    memset((char *)deep, 0, sizeof deep);
}

int main(int count, char **words) {
    if (count != 4)
        return 2;
    sleep((unsigned)atoi(words[2]));
    remember();
    if (!strcmp(words[1], "kept_by_a_list"))
        kept_by_a_list();
    else if (!strcmp(words[1], "lost_by_overwrite"))
        lost_by_overwrite();
    else
        with_plugin(words[3], !strcmp(words[1], "lost_with_a_plugin"));
    clear_stack();
    for (;;)
        pause();
}
