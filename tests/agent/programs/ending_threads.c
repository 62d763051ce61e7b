// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// ending_threads [SECONDS]: threads, one after the other, that never allocate, and free while they end: in the last round
// of a key's destructor. jemalloc 5.3.1 then puts the thread into its lists, and nothing takes it out again
// (jemalloc#2981). Ends with 0 when all went well. For so many seconds, another thread has jemalloc go through its lists.
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define THREADS 2000
// More than the 128 frees after which 5.3.1 lists the thread.
#define BLOCKS 200
// 5.3.1 loses the blocks with the thread. They have to be so large that the heap grows into the place of earlier stacks:
// as long as each stack lies where the one before it lay, the lists point to the living one.
#define BLOCK_SIZE 1024
// More than the C library keeps for later threads (40 MiB), so that a thread's memory is gone as soon as it has ended.
#define STACK_SIZE ((size_t)64 << 20)

extern int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));

static pthread_key_t key;
static void *blocks[BLOCKS];

static void count_down(void *value) {
    uintptr_t rounds = (uintptr_t)value - 1;
    if (rounds > 0) {
        pthread_setspecific(key, (void *)rounds);
        return;
    }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

static void *end(void *nothing) {
    pthread_setspecific(key, (void *)(uintptr_t)PTHREAD_DESTRUCTOR_ITERATIONS);
    return nothing;
}

static void *refresh(void *nothing) {
    uint64_t epoch = 1;
    while (mallctl("epoch", NULL, NULL, &epoch, sizeof epoch) == 0) epoch++;
    return nothing;
}

int main(int count, char **words) {
    pthread_attr_t attributes;
    pthread_t beside;
    time_t end_at = count > 1 ? time(NULL) + atol(words[1]) : 0;
    if (end_at && (!mallctl || pthread_create(&beside, NULL, refresh, NULL))) return 2;
    if (pthread_key_create(&key, count_down) || pthread_attr_init(&attributes)) return 1;
    if (pthread_attr_setstacksize(&attributes, STACK_SIZE)) return 1;
    for (int i = 0; end_at ? time(NULL) < end_at : i < THREADS; i++) {
        pthread_t thread;
        for (int j = 0; j < BLOCKS; j++) blocks[j] = malloc(BLOCK_SIZE);
        if (pthread_create(&thread, &attributes, end, NULL) || pthread_join(thread, NULL)) return 1;
    }
    return 0;
}
