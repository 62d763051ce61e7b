// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// churn SLICES ROUNDS: four threads allocate and free small and middle-sized blocks, each with a working set of its
// own; prints the wall-clock and CPU seconds of each slice of work.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREADS 4
#define BLOCKS 2000

static long rounds;

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *work(void *argument) {
    uint64_t dice = 88172645463325252u + (uintptr_t)argument;
    char **blocks = calloc(BLOCKS, sizeof *blocks);
    for (long i = 0; i < rounds; i++) {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        size_t at = dice % BLOCKS, size = 16 + (dice >> 20) % (dice >> 50 & 15 ? 512 : 16384);
        free(blocks[at]);
        blocks[at] = malloc(size);
        memset(blocks[at], (int)i, size < 256 ? size : 256);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    free(blocks);
    return NULL;
}

static void slice(void) {
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    rounds = atol(arguments[2]);
    slice();
    for (int i = atoi(arguments[1]); i > 0; i--) {
        double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        slice();
        printf("%.6f %.6f\n", now(CLOCK_MONOTONIC) - wall, now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
        fflush(stdout);
    }
    return 0;
}
