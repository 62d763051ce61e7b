// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Allocates in a coroutine that never returns: what its caller's address should be is what lay there before. A line on
// stdin has it switch once more, and answer with how often it has so far.
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

static ucontext_t outside, inside;

__attribute__((noinline)) static void allocate_here(void) {
    *(void *volatile *)malloc(1000) = NULL;   // and keeps it
}

static void run(void) {
    for (;;) {
        allocate_here();
        swapcontext(&inside, &outside);
    }
}

int main(void) {
    const size_t size = 65536;
    char line[16];
    static int count;
    setvbuf(stdout, NULL, _IONBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0);
    getcontext(&inside);
    inside.uc_stack.ss_sp = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    inside.uc_stack.ss_size = size;
    inside.uc_link = &outside;
    makecontext(&inside, run, 0);
#ifdef __x86_64__
    *(uintptr_t *)inside.uc_mcontext.gregs[REG_RSP] = UINT64_C(0x4141414141414141);
#else
    inside.uc_mcontext.regs[30] = UINT64_C(0x4141414141414141);
#endif
    for (;;) {
        swapcontext(&outside, &inside);
        count++;
        struct pollfd input = {.fd = 0, .events = POLLIN};
        if (poll(&input, 1, 1) > 0) {
            if (!fgets(line, sizeof line, stdin))
                return 0;
            printf("%d\n", count);
        }
    }
}
