// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
// A program of the truth suite: for each line on stdin one step, then a line on stdout.
#ifndef STEPS_H
#define STEPS_H

#include <stdio.h>

#define STAY __attribute__((noinline, noclone))
// Keeps a call from becoming a jump, so that its function stands in the stack.
#define HERE __asm__ volatile("" ::: "memory")

static int next_step(void)
{
    char line[16];

    puts("ready");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}

#endif
