// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The kernel's clocks in milliseconds.
#include "clock.h"

static int64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return clock_milliseconds(now);
}

int64_t clock_now(void) {
    return read_clock(CLOCK_REALTIME);
}

int64_t clock_monotonic(void) {
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_since_boot(void) {
    return read_clock(CLOCK_BOOTTIME);
}

uint64_t clock_nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
