// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The ledger by itself, for the sanitizers: ledger_driver THREADS STEPS FILE. It is the jemalloc that calls the ledger:
// THREADS threads have STEPS births each and as many deaths as they can, FILE.lives is written over and over meanwhile,
// and children are forked that must find it closed. At the end it says how many births and deaths there were.
#include "book.h"
#include "ledger.h"
#include "mallctl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT 500
#define STACKS 300

static je_birth *birth;
static je_death *death;
static int steps;
static atomic_ulong births, deaths;

int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) {
    (void)old_size;
    (void)new_size;
    if (!strcmp(name, "experimental.hooks.prof_sample"))
        memcpy(&birth, new, sizeof birth);
    else if (!strcmp(name, "experimental.hooks.prof_sample_free"))
        memcpy(&death, new, sizeof death);
    else if (!strcmp(name, "prof.active"))
        *(char *)old = 1;
    else if (!strcmp(name, "prof.lg_sample"))
        *(size_t *)old = 16;
    else
        return 1;
    return 0;
}

static void be_born(uintptr_t address, unsigned stack) {
    void *frames[4] = {(void *)(uintptr_t)(0x1000 + stack), (void *)0x2000, (void *)0x3000, (void *)0x4000};
    birth((void *)address, 100, frames, 2 + stack % 3, 112);
}

static void *serve(void *number) {
    // Addresses as jemalloc gives them to what is sampled, those of threads interleaved.
    uintptr_t thread = (uintptr_t)number, held[KEPT] = {0}, next = 0;
    unsigned state = (unsigned)thread;
    for (int i = 0; i < steps; i++) {
        state = state * 1103515245u + 12345u;
        unsigned at = (state >> 8) % KEPT;
        if (held[at]) {
            death((void *)held[at], 112);
            atomic_fetch_add(&deaths, 1);
        }
        // Every other time the same address again, as realloc in its place.
        if (!held[at] || i % 2)
            held[at] = 0x100000 + ((next++ % 100000) * 64 + thread) * 16384;
        for (int other = 0; other < KEPT; other++)   // after a round, some addresses are still held
            if (other != (int)at && held[other] == held[at]) {
                held[at] = 0x100000 + ((next++ % 100000) * 64 + thread) * 16384;
                other = -1;
            }
        be_born(held[at], (state >> 16) % STACKS);
        atomic_fetch_add(&births, 1);
    }
    return NULL;
}

static int in_child(const char *file) {
    be_born(0x1234560000, 1);   // must neither wait nor count
    death((void *)0x1234560000, 112);
    return ledger_write(file, INT64_MAX) && access(file, F_OK) < 0 ? 0 : 1;
}

int main(int count, char **words) {
    pthread_t threads[16];
    if (count != 4)
        return 2;
    int number = atoi(words[1]);
    steps = atoi(words[2]);
    char child_file[4096], none[4096 + 8];
    snprintf(child_file, sizeof child_file, "%s.child", words[3]);
    snprintf(none, sizeof none, "%s.lives", child_file);
    ledger_begin();
    if (!birth || !death || !book_reserve(true))
        return 2;
    for (int i = 0; i < number; i++)
        pthread_create(&threads[i], NULL, serve, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < 10; i++) {
        if (!ledger_write(words[3], INT64_MAX))
            return 3;
        pid_t child = fork();
        int status = 0;
        if (child == 0)
            _exit(in_child(child_file));
        waitpid(child, &status, 0);
        if (status || access(none, F_OK) == 0)
            return 4;
        usleep(20000);
    }
    for (int i = 0; i < number; i++)
        pthread_join(threads[i], NULL);
    if (!ledger_write(words[3], INT64_MAX))
        return 3;
    unsigned long filtered = 0;
    for (size_t at = 0; at < BOOK_FILTER; at++)
        filtered += book_filter[at];
    if (filtered != births - deaths)
        return 5;
    printf("%lu %lu\n", births, deaths);
    return 0;
}
