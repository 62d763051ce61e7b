// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Times, all in milliseconds.
#ifndef OFFHEAP_CLOCK_H
#define OFFHEAP_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_milliseconds(struct timespec time) {
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int64_t clock_now(void);         // since the epoch
int64_t clock_monotonic(void);   // never set back, so what periods and deadlines are measured by
int64_t clock_since_boot(void);
uint64_t clock_nanoseconds(void);   // monotonic, and no system call

#endif
