// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service whose objects' lives are known: lived SHAPE SECONDS. Once a millisecond it replaces an entry of a cache, at
// random, so that its entries live for a second on average; in some part of the time, as the shape says, it also keeps
// an object for ever: "leak" all the time, "late" from 0.6 on, "ended" from 0.2 to 0.5, "cache" never.
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ENTRIES 1000
#define SIZE 4096

static void *cache[ENTRIES];

__attribute__((noinline)) static void *filled(void) {
    void *block = malloc(SIZE);
    if (block)
        memset(block, 1, SIZE);
    return block;
}

__attribute__((noinline)) void keep_one(void) {
    void *block = filled();
    __asm__ volatile("" : : "r"(block) : "memory");
}

__attribute__((noinline)) void replace_one(unsigned at) {
    free(cache[at]);
    cache[at] = filled();
    atomic_signal_fence(memory_order_seq_cst);   // no tail call
}

static bool leaks(const char *shape, double part) {
    if (!strcmp(shape, "leak"))
        return true;
    if (!strcmp(shape, "late"))
        return part > 0.6;
    return !strcmp(shape, "ended") && part > 0.2 && part < 0.5;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    double seconds = atof(words[2]), began = now(), due = began;
    unsigned state = 1;
    for (;;) {
        double part = (now() - began) / seconds;
        for (; due < now(); due += 0.001) {   // what it was late for, too
            state = state * 1103515245u + 12345u;
            replace_one((state >> 8) % ENTRIES);
            if (leaks(words[1], part))
                keep_one();
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}
