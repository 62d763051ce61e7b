/* SPDX-License-Identifier: GPL-3.0-or-later */
/* SPDX-FileCopyrightText: Offheap contributors */
/*
 * A library that answers as jemalloc's mallctl does, and is broken in one way: -DFAULT=... at compile time.
 * It says that it is VERSION, 5.3.0 unless set. It allocates nothing itself; the C library goes on doing that.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    NONE, CRASHES, HANGS, SILENT, PAGES, NO_PROF, NO_DUMP, LIES_ABOUT_DUMP, EMPTY_DUMP, ONLY_ITSELF, MOSTLY_ITSELF,
    DUMPS_A_PIPE, DUMPS_ZEROS, DUMPS_NONSENSE, SAYS_NONSENSE, TALKS_FOR_EVER
};
#ifndef FAULT
#define FAULT NONE
#endif
#ifndef VERSION
#define VERSION "5.3.0-fake"
#endif

static void dump(const char *path) {
    FILE *out = fopen(path, "w"), *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    fputs("heap_v2/1024\n  t*: 1: 1024 [0: 0]\n", out);
    for (int i = 0; i < 100 && FAULT != EMPTY_DUMP; i++) {
        bool outside = FAULT == MOSTLY_ITSELF ? i < 10 : FAULT != ONLY_ITSELF;
        fprintf(out, "@ %p", (void *)((char *)dump + i));
        if (outside) fprintf(out, " %p", (void *)((char *)exit + i));
        fputs("\n  t*: 1: 1024 [0: 0]\n", out);
    }
    fputs("\nMAPPED_LIBRARIES:\n", out);
    while (fgets(line, sizeof line, maps)) fputs(line, out);
    fclose(maps);
    fclose(out);
}

int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) {
    (void)old_size;
    (void)new_size;
    if (!strcmp(name, "version")) *(const char **)old = VERSION;
    else if (!strcmp(name, "config.prof") || !strcmp(name, "opt.prof")) *(bool *)old = FAULT != NO_PROF;
    else if (!strcmp(name, "arenas.page")) *(size_t *)old = 4096;
    else if (strcmp(name, "prof.dump")) return 2;
    else if (FAULT == NO_DUMP) return 14;
    else if (FAULT == DUMPS_A_PIPE) return mkfifo(*(const char **)new, 0666);
    else if (FAULT == DUMPS_ZEROS) return symlink("/dev/zero", *(const char **)new);
    else if (FAULT == DUMPS_NONSENSE) {
        FILE *out = fopen(*(const char **)new, "w");
        fputs("@ 0x1 none\n", out);
        fclose(out);
    }
    else if (FAULT != LIES_ABOUT_DUMP) dump(*(const char **)new);
    return 0;
}

__attribute__((constructor)) static void start(void) {
    const char *conf = getenv("MALLOC_CONF");
    if (FAULT == CRASHES) raise(SIGSEGV);
    if (FAULT == HANGS) for (;;) pause();
    if (FAULT == SILENT) _exit(0);
    if (FAULT == SAYS_NONSENSE) _exit(write(1, "[1]", 3) != 3);
    if (FAULT == TALKS_FOR_EVER) for (;;) fputs("and so on ", stdout);
    if (FAULT == NO_PROF && conf && strstr(conf, "prof:true"))
        fputs("<jemalloc>: Invalid conf pair: prof:true\n<jemalloc>: Invalid conf pair: prof_active:true\n", stderr);
    if (FAULT == PAGES) {
        fputs("<jemalloc>: Unsupported system page size\n", stderr);
        abort();
    }
}
