// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A server may give the pointer to a connection to epoll_ctl(2) and keep no other. /proc/self/fdinfo shows it (proc(5)):
// "tfd: <file> events: <mask> data: <word> ...". The kernel lets nobody wait for these files while it writes the list, a
// microsecond each at most.
#include "epolls.h"

#include "descriptors.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct looking {
    int tid;
    void (*visit)(void *context, uint64_t word);
    void *context;
};

static void read_list(const struct looking *looking, const char *path) {
    static const char data[] = " data: ";
    static char text[8192];
    struct owned file;
    size_t kept = 0;
    ssize_t count;
    if (!owned_take(&file, open(path, O_RDONLY | O_CLOEXEC)))
        return;
    while (owned_still(&file) && (count = read(file.fd, text + kept, sizeof text - 1 - kept)) > 0) {
        char *line = text, *end;
        text[kept + (size_t)count] = '\0';
        for (; (end = strchr(line, '\n')); line = end + 1) {
            *end = '\0';
            const char *word = strstr(line, data);
            if (word)
                looking->visit(looking->context, strtoull(word + sizeof data - 1, NULL, 16));
        }
        kept = strlen(line);
        memmove(text, line, kept);
    }
    owned_close(&file);
}

static void count(void *context, const struct owned *directory, const char *name) {
    (void)directory;
    *(size_t *)context += *name >= '0' && *name <= '9';
}

static void look(void *context, const struct owned *directory, const char *name) {
    const struct looking *looking = context;
    char path[64], what[32] = "";
    (void)directory;
    if (*name < '0' || *name > '9')
        return;
    snprintf(path, sizeof path, "/proc/self/task/%d/fd/%.20s", looking->tid, name);
    if (readlink(path, what, sizeof what - 1) < 0 || strcmp(what, "anon_inode:[eventpoll]"))
        return;
    snprintf(path, sizeof path, "/proc/self/task/%d/fdinfo/%.20s", looking->tid, name);
    read_list(looking, path);
}

size_t epolls_files(int tid) {
    size_t files = 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/fd", tid);
    (void)owned_list(path, count, &files);
    return files;
}

void epolls_look(int tid, void (*visit)(void *context, uint64_t word), void *context) {
    struct looking looking = {tid, visit, context};
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/fd", tid);
    (void)owned_list(path, look, &looking);
}
