// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Allocates below frames of every form that a compiler makes: with and without a frame pointer, of a size that is known only
// when it runs, realigned, deep, and below a signal's handler. Built without frame pointers.
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APART __attribute__((noinline, noclone))
#define BLOCKS 70   // of each form

static volatile size_t sink;

APART static void keep(const void *data) {
    sink += ((uintptr_t)data >> 4) + *(const volatile char *)data;
}

APART static void allocate(size_t size) {
    char *block = malloc(size);
    if (!block)
        abort();
    *block = 1;
    keep(block);
    free(block);
}

APART static void plain(size_t size) {
    char room[600];
    memset(room, (int)size, sizeof room);
    allocate(size);
    keep(room);
}

__attribute__((optimize("no-omit-frame-pointer"))) APART static void with_pointer(size_t size) {
    allocate(size);
    sink++;
}

APART static void of_any_size(size_t size) {
    char *room = alloca(size * 16 + sink % 64);
    *room = 1;
    plain(size);
    keep(room);
}

APART static void realigned(size_t size) {
    _Alignas(64) char room[128];
    memset(room, (int)size, sizeof room);
    of_any_size(size);
    keep(room);
}

APART static void deep(size_t size, unsigned levels) {
    if (levels)
        deep(size, levels - 1);
    else
        with_pointer(size);
    sink++;
}

static void on_signal(int number) {
    plain((size_t)number);
    sink++;
}

static void *all(void *nothing) {
    for (size_t i = 1; i <= BLOCKS; i++) {
        plain(i);
        with_pointer(i);
        of_any_size(i);
        deep(i, (unsigned)i * 2);
    }
    sink++;
    return nothing;
}

int main(int count, char **words) {
    pthread_t thread;
    (void)words;
    signal(SIGUSR1, on_signal);
    all(NULL);
    if (pthread_create(&thread, NULL, all, NULL) || pthread_join(thread, NULL))
        return 1;
    for (size_t i = 1; count > 1 && i <= BLOCKS; i++) {   // with an argument, also what is for libgcc
        realigned(i);
        raise(SIGUSR1);
    }
    return 0;
}
