// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service for the ledger: lives THREADS STEPS. It does one thing for each line on stdin, and answers with a line:
// "churn": threads that allocate, reallocate, hand over, and end, while children are forked; "free": what is left of it;
// "stacks": an object, freed at once, from each of 20,000 stacks; "lock": all its memory, also what comes.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 512

static int steps;
static _Atomic(void *) shared[SLOTS];

static void *serve(void *number) {
    unsigned state = (unsigned)(uintptr_t)number;
    for (int i = 0; i < steps; i++) {
        state = state * 1103515245u + 12345u;
        _Atomic(void *) *slot = &shared[(state >> 8) % SLOTS];
        void *mine = atomic_exchange(slot, NULL), *moved;
        size_t size = 16 + (state >> 16) % 3000;
        if (state >> 12 & 1) {
            free(mine);
            mine = malloc(size);
        } else if ((moved = realloc(mine, size))) {
            mine = moved;
        }
        free(atomic_exchange(slot, mine));   // which another thread may have allocated
    }
    return NULL;
}

static bool churn(int threads) {
    pthread_t started[16];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, serve, (void *)(uintptr_t)(i + 1)))
            return false;
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        int status = 0;
        if (child == 0) {
            for (int at = 0; at < 100; at++)
                free(atomic_exchange(&shared[at], malloc(100)));
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status)
            return false;
    }
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    return true;
}

__attribute__((noinline)) static void *left(unsigned path, int depth);

__attribute__((noinline)) static void *right(unsigned path, int depth) {
    void *block = !depth ? malloc(64) : path & 1 ? right(path >> 1, depth - 1) : left(path >> 1, depth - 1);
    atomic_signal_fence(memory_order_seq_cst);   // no tail call
    return block;
}

__attribute__((noinline)) static void *left(unsigned path, int depth) {
    void *block = !depth ? malloc(64) : path & 1 ? right(path >> 1, depth - 1) : left(path >> 1, depth - 1);
    atomic_signal_fence(memory_order_seq_cst);
    return block;
}

int main(int count, char **words) {
    static char line[64];
    if (count != 3)
        return 2;
    steps = atoi(words[2]);
    setvbuf(stdout, NULL, _IONBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        bool done = true;
        if (!strcmp(line, "churn\n")) {
            done = churn(atoi(words[1]));
        } else if (!strcmp(line, "free\n")) {
            for (int at = 0; at < SLOTS; at++)
                free(atomic_exchange(&shared[at], NULL));
        } else if (!strcmp(line, "lock\n")) {
            done = !mlockall(MCL_CURRENT | MCL_FUTURE);
        } else {
            for (unsigned path = 0; path < 20000; path++)
                free(left(path, 15));
        }
        puts(done ? "done" : "failed");
    }
    return 0;
}
