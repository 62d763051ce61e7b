// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
// A service that does a step twenty times a second and keeps a tally of what it has forgotten: in a file with its pid,
// every fifth step a line with the time (seconds since the epoch) and the bytes of each path so far.
#ifndef SERVED_H
#define SERVED_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define STAY __attribute__((noinline, noclone))
// Keeps a call from becoming a jump, so that its function stands in the stack.
#define HERE __asm__ volatile("" ::: "memory")

enum { STEP = 50000000, STEPS_A_LINE = 5, PATHS = 3 };

static unsigned long forgotten[PATHS];

static void write_line(FILE *tally)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    fprintf(tally, "%ld.%06ld", (long)now.tv_sec, now.tv_nsec / 1000);
    for (int i = 0; i < PATHS; i++)
        fprintf(tally, " %lu", __atomic_load_n(&forgotten[i], __ATOMIC_RELAXED));
    putc('\n', tally);
    fflush(tally);
}

static FILE *open_tally(const char *directory)
{
    char path[4096];
    FILE *tally;

    snprintf(path, sizeof path, "%s/%d.tally", directory, (int)getpid());
    tally = fopen(path, "w");
    if (!tally)
        abort();
    return tally;
}

// Goes on for ever. A step that comes late does not delay those after it.
static void serve(FILE *tally, void (*step)(void))
{
    struct timespec next;

    clock_gettime(CLOCK_MONOTONIC, &next);
    for (int number = 0;; number++) {
        if (number % STEPS_A_LINE == 0)
            write_line(tally);
        step();
        next.tv_nsec += STEP;
        next.tv_sec += next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL))
            ;
    }
}

#endif
