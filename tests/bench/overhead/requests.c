// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// requests STACKS RATE SECONDS MIB: after a line, four threads answer so many requests a second, each of 60 allocations and 60 frees, while
// blocks of so many different stacks are held, and a list of so many MiB in blocks of two sizes; prints the p50, p99 and p99.9 of a request in microseconds, counted from
// when it was due, so that whatever holds a thread counts for each request that waited.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREADS 4
#define BLOCKS 60
#define DEPTH 15
#define HELD (1 << 20)   // bytes of a block that is held, and never touched: most are sampled, and none is resident

static long rate, seconds, stacks;
static double *latencies[THREADS];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

typedef void (*leaf)(uint64_t);

// Each path through left and right is a stack of its own.
static void left(uint64_t path, int depth, leaf call, uint64_t value);

static __attribute__((noinline)) void right(uint64_t path, int depth, leaf call, uint64_t value) {
    if (depth)
        (path & 1 ? right : left)(path >> 1, depth - 1, call, value);
    else
        call(value);
    __asm__ volatile("");   // no tail call
}

static __attribute__((noinline)) void left(uint64_t path, int depth, leaf call, uint64_t value) {
    if (depth)
        (path & 1 ? right : left)(path >> 1, depth - 1, call, value);
    else
        call(value);
    __asm__ volatile("");
}

static void hold(uint64_t value) {
    (void)value;
    if (!malloc(HELD))
        exit(1);
}

// Every tenth block has 8,000 bytes, the others 96.
static void **list;

static void hold_list(long mebibytes) {
    size_t left = (size_t)mebibytes << 20;
    for (size_t i = 0; left > 8000; i++) {
        size_t size = i % 10 ? 96 : 8000;
        void **block = malloc(size);
        memset(block, 1, size);
        *block = list;
        list = block;
        left -= size;
    }
}

static void request(uint64_t dice) {
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        size_t size = 16 + dice % 1024;
        blocks[i] = malloc(size);
        memset(blocks[i], i, size < 64 ? size : 64);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
}

static void *serve(void *argument) {
    size_t number = (size_t)argument;
    uint64_t dice = 88172645463325252u + number;
    double begin = now() + 0.01 * (double)number;
    for (long i = 0; i < rate * seconds; i++) {
        double due = begin + (double)i / (double)rate, left_over;
        while ((left_over = due - now()) > 0) {
            struct timespec wait = {.tv_nsec = (long)(left_over * 1e9)};
            nanosleep(&wait, NULL);
        }
        double started = now();
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        right(dice >> 40, DEPTH, request, dice);
        // A late wake-up is the kernel's; what a request before it took is not.
        double late = i && latencies[number][i - 1] > 1.0 / (double)rate ? started - due : 0;
        latencies[number][i] = now() - started + late;
    }
    return NULL;
}

static int compare(const void *left_one, const void *right_one) {
    double a = *(const double *)left_one, b = *(const double *)right_one;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    if (count != 5 || getchar() < 0)
        return 2;
    stacks = atol(arguments[1]);
    rate = atol(arguments[2]);
    seconds = atol(arguments[3]);
    size_t each = (size_t)(rate * seconds), all = each * THREADS;
    double *every = calloc(all, sizeof *every);
    pthread_t threads[THREADS];
    hold_list(atol(arguments[4]));
    for (long i = 0; i < stacks; i++)
        right((uint64_t)i, DEPTH, hold, 0);
    for (size_t i = 0; i < THREADS; i++) {
        latencies[i] = every + i * each;
        memset(latencies[i], 0, each * sizeof *every);
        pthread_create(&threads[i], NULL, serve, (void *)i);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    qsort(every, all, sizeof *every, compare);
    for (int i = 0; i < 3; i++)
        printf("%.2f%c", every[(size_t)((double)(all - 1) * (double[]){0.5, 0.99, 0.999}[i])] * 1e6, i < 2 ? ' ' : '\n');
    return 0;
}
