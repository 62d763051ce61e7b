// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// data kept|lost|hidden|secret|many: after a line, a table of blocks without pointers; "lost": of some more nobody knows; "hidden": some
// in the middle of the table alone lead to others; "secret": a page is there that the kernel shows to nobody, if it can; "many":
// as "lost", with many open files, if it may have them.
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

#define BLOCKS 4000
#define SIZE 16384
#define FEW 50
#define FEW_SIZE 5000
#define FILES 10100

extern char *volatile table[BLOCKS];
char *volatile table[BLOCKS];

static char *filled(size_t size) {
    return memset(malloc(size), 'x', size);
}

// Of their own stacks.
static __attribute__((noinline)) char *lost_few(void) {
    char *made = filled(FEW_SIZE);
    __asm__ volatile("");
    return made;
}

static __attribute__((noinline)) void kept_data(void) {
    for (int i = 0; i < BLOCKS; i++)
        table[i] = filled(SIZE);
}

static __attribute__((noinline)) void hide(char *address) {
    for (int i = BLOCKS / 2; i < BLOCKS / 2 + FEW; i++) {
        address = lost_few();
        memcpy(table[i] + SIZE / 2, &address, sizeof address);
    }
}

static bool keep_secret(void) {
    int fd = (int)syscall(SYS_memfd_secret, 0);
    if (fd < 0 || ftruncate(fd, 4096))
        return false;
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return page != MAP_FAILED && memset(page, 1, 4096);
}

static bool open_many(void) {
    struct rlimit limit;
    int last = 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (last >= 0 && last < FILES)
        last = dup(0);
    return last >= 0;
}

int main(int count, char **words) {
    if (count != 2 || getchar() < 0)
        return 2;
    kept_data();
    if (*words[1] == 'h')
        hide(NULL);
    for (int i = 0; strchr("lm", *words[1]) && i < FEW; i++)
        lost_few();
    bool can = *words[1] == 's' ? keep_secret() : *words[1] == 'm' ? open_many() : true;
    puts(can ? "ready" : "cannot");
    fflush(stdout);
    return getchar() < 0;
}
