// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What the sampler costs its process, against what it may.
#ifndef OFFHEAP_COST_H
#define OFFHEAP_COST_H

#include <stdbool.h>
#include <stdint.h>

struct cost {
    int64_t most;          // thousandths of the process's CPU time; 0: no limit
    int64_t looked, next;  // monotonic milliseconds
    uint64_t spent, used;  // nanoseconds until then: by the sampler, by the process
};

void cost_begin(struct cost *cost, int64_t most, int64_t now);
bool cost_is_too_high(struct cost *cost, int64_t now);
int64_t cost_next(const struct cost *cost);   // when to look again; 0: never

#endif
