// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The process's threads: where their stacks are in use, and their thread-local memory.
#ifndef OFFHEAP_THREADS_H
#define OFFHEAP_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#define THREADS 4096
#define THREADS_OWN_STACK (256 << 10)   // bytes of the agent's

struct thread {
    int tid;
    uintptr_t stack;             // its stack pointer; 0: not known, it runs
    uintptr_t descriptor;        // as its pthread_self(); 0: not known
    char name[16];
};

struct threads {
    bool full;                   // there are more, or they could not be listed
    int count;
    struct thread thread[THREADS];   // all but this one
};

void threads_look(struct threads *threads);
bool threads_has(int tid);       // it has not ended

#endif
