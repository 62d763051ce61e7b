// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Some seconds are judged at a time. What is less than a hundredth of one processor hurts nobody, whatever its share.
#include "cost.h"

#include "feeder.h"

#include <time.h>

#define PERIOD 5000         // milliseconds
#define HARMLESS 10         // thousandths of one processor
#define NANOSECONDS UINT64_C(1000000)   // of a millisecond

static uint64_t used(void) {
    struct timespec time = {0, 0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000 * NANOSECONDS + (uint64_t)time.tv_nsec;
}

void cost_begin(struct cost *cost, int64_t most, int64_t now) {
    *cost = (struct cost){most, now, most ? now + PERIOD : 0, feeder_spent(), used()};
}

bool cost_is_too_high(struct cost *cost, int64_t now) {
    if (!cost->next || now < cost->next)
        return false;
    struct cost before = *cost;
    cost_begin(cost, before.most, now);
    uint64_t spent = cost->spent - before.spent, passed = (uint64_t)(now - before.looked) * NANOSECONDS;
    return spent * 1000 > (cost->used - before.used) * (uint64_t)before.most && spent * 1000 > passed * HARMLESS;
}

int64_t cost_next(const struct cost *cost) {
    return cost->next;
}
