// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Times, all in milliseconds.
#ifndef OFFHEAP_CLOCK_H
#define OFFHEAP_CLOCK_H

#include <stdint.h>
#include <time.h>

int64_t clock_milliseconds(struct timespec time);
int64_t clock_now(void);         // since the epoch
int64_t clock_monotonic(void);   // never set back, so what periods and deadlines are measured by
int64_t clock_since_boot(void);
uint64_t clock_nanoseconds(void);   // monotonic, and no system call

#endif
