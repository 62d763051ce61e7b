// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Threads, one after the other, that never allocate, and free while they end: in the last round of a key's destructor.
// jemalloc 5.3.1 then puts the thread into its lists, and nothing takes it out again (jemalloc#2981). Ends with 0 when
// all went well.
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define THREADS 2000
// More than the 128 frees after which 5.3.1 lists the thread.
#define BLOCKS 200
// 5.3.1 loses the blocks with the thread. They have to be so large that the heap grows into the place of earlier stacks:
// as long as each stack lies where the one before it lay, the lists point to the living one.
#define BLOCK_SIZE 1024
// More than the C library keeps for later threads (40 MiB), so that a thread's memory is gone as soon as it has ended.
#define STACK_SIZE ((size_t)64 << 20)

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

int main(void) {
    pthread_attr_t attributes;
    if (pthread_key_create(&key, count_down) || pthread_attr_init(&attributes)) return 1;
    if (pthread_attr_setstacksize(&attributes, STACK_SIZE)) return 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        for (int j = 0; j < BLOCKS; j++) blocks[j] = malloc(BLOCK_SIZE);
        if (pthread_create(&thread, &attributes, end, NULL) || pthread_join(thread, NULL)) return 1;
    }
    return 0;
}
