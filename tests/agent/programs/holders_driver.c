// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The look for holders by itself, for the sanitizers: holders_driver SECONDS FILE. It is the jemalloc that is asked: its
// blocks lie in one piece of memory, in rows of one size, and in a large one. Threads link and unlink them, and map and
// unmap memory, while FILE.holders is written over and over. At the end it says how often.
#include "book.h"
#include "holders.h"
#include "ledger.h"
#include "mallctl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SIZE 128
#define ROWS 20000               // of which every tenth is sampled
#define LARGE (ROWS * SIZE)

static je_birth *birth;
static je_death *death;
static char *rows, *large;       // mapped in one
static atomic_bool ending;
static void *_Atomic head;       // a list of all

static enum je_block find(const void *address, void **start, size_t *size, void **end) {
    uintptr_t offset = (uintptr_t)address - (uintptr_t)rows;
    if (offset < ROWS * SIZE) {
        *start = rows + offset / SIZE * SIZE;
        *size = SIZE;
        *end = large;
        return offset / SIZE % 7 ? JE_LIVING : JE_FREE;
    }
    if (offset >= ROWS * SIZE + 4096)   // as for the inner pages of a large block
        return JE_NOTHING;
    *start = large;
    *size = LARGE;
    *end = large + LARGE;
    return JE_LIVING;
}

int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) {
    je_find *finder = find;
    (void)old_size;
    (void)new_size;
    if (!strcmp(name, "experimental.hooks.prof_sample"))
        memcpy(&birth, new, sizeof birth);
    else if (!strcmp(name, "experimental.hooks.prof_sample_free"))
        memcpy(&death, new, sizeof death);
    else if (!strcmp(name, "experimental.blocks.find"))
        memcpy(old, &finder, sizeof finder);
    else if (strcmp(name, "experimental.blocks.own"))
        return 1;
    return 0;
}

static void *serve(void *context) {
    while (!ending) {
        for (int i = 1; i < ROWS; i++)
            if (i % 7)
                __atomic_store_n((void **)(rows + (size_t)i * SIZE), i % 3 ? large + i * 8 : rows + (size_t)(i - 1) * SIZE, __ATOMIC_RELAXED);
        void *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(area, 1, 1 << 20);
        munmap(area, 1 << 20);
        for (int i = 0; i < ROWS; i += 10) {
            void *frames[2] = {(void *)(uintptr_t)(0x1000 + i % 90), (void *)0x2000};
            if (context && i % 7) {
                death(rows + (size_t)i * SIZE, SIZE);
                birth(rows + (size_t)i * SIZE, SIZE, frames, 2, SIZE);
            }
        }
    }
    return context;
}

int main(int count, char **words) {
    pthread_t threads[3];
    struct holders_told told = {.complete = false};
    int looks = 0;
    if (count != 3)
        return 2;
    rows = mmap(NULL, ROWS * SIZE + LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    large = rows + ROWS * SIZE;
    memset(rows, 0, ROWS * SIZE + LARGE);
    head = large;
    for (size_t i = 0; i < ROWS; i++)
        ((void **)large)[i] = rows + i * SIZE;
    ledger_begin();
    if (!birth || !death)
        return 2;
    for (uintptr_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, serve, i ? NULL : (void *)1);
    for (time_t until = time(NULL) + atoi(words[1]); time(NULL) < until; looks++)
        if (!holders_write(words[2], looks % 2 ? 20 : 100, &told))
            return 3;
    ending = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%d %d\n", looks, head != NULL);
    return 0;
}
