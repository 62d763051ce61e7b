// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Linked with the agent's sources and fake_jemalloc.c: driver SECONDS [fork]. Threads come and go and take stacks at
// random depths; each must be the calls that were really made, as far as these functions go.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 30

void fake_sample(void **frames, unsigned *length, unsigned limit);

static double until;
static atomic_ulong taken, wrong;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

extern const char __start_descending[], __stop_descending[];   // of the section, from the linker
static void descend(unsigned depth, void **frames, unsigned *length);
static void (*volatile again)(unsigned, void **, unsigned *) = descend;   // so that each call is really one

__attribute__((noinline, section("descending"))) static void descend(unsigned depth, void **frames, unsigned *length) {
    if (depth)
        again(depth - 1, frames, length);
    else
        fake_sample(frames, length, 128);
    atomic_signal_fence(memory_order_seq_cst);
}

static void look(unsigned depth) {
    void *frames[128];
    unsigned length, calls = 0;
    descend(depth, frames, &length);
    if (!length)
        return;   // not active yet
    for (unsigned i = 0; i < length; i++)
        calls += (const char *)frames[i] > __start_descending && (const char *)frames[i] <= __stop_descending;
    atomic_fetch_add(&taken, 1);
    if (calls != depth + 1)
        atomic_fetch_add(&wrong, 1);
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(size_t)argument;
    for (int i = 0; i < 50; i++)
        look((unsigned)rand_r(&seed) % DEPTH);
    return NULL;
}

// Code comes and goes, so that the table of executable ranges changes.
static void *map(void *argument) {
    while (now() < until) {
        void *code = mmap(NULL, 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        usleep(2000);
        munmap(code, 8192);
    }
    return argument;
}

int main(int count, char **arguments) {
    pthread_t threads[8], mapper;
    until = now() + atof(arguments[1]);
    pthread_create(&mapper, NULL, map, NULL);
    for (size_t seed = 1; now() < until;) {
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, work, (void *)seed++);
        work((void *)seed);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        if (count > 2) {
            int status;
            pid_t child = fork();
            if (!child) {
                look(5);
                _exit(0);
            }
            if (waitpid(child, &status, 0) != child || status)
                return 1;
        }
    }
    pthread_join(mapper, NULL);
    printf("taken %lu wrong %lu\n", atomic_load(&taken), atomic_load(&wrong));
    return atomic_load(&wrong) || !atomic_load(&taken);
}
