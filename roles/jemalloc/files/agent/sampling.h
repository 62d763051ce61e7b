// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Sampling on or off, and the unwinder that it needs.
#ifndef OFFHEAP_SAMPLING_H
#define OFFHEAP_SAMPLING_H

#include "config.h"
#include "facts.h"
#include "problem.h"

#include <stdbool.h>
#include <stdint.h>

struct sampling {
    const struct config *config;
    struct facts *facts;
    struct problem *problem;
    bool begun;                 // the start delay is over
    bool wanted;                // on, or to be switched on when the start delay is over
    const char *unwinder_why;   // why it is not the configured one; NULL if it is
    int64_t begin_at;           // monotonic milliseconds
    int64_t next_refresh;       // of the executable ranges; the same
    int64_t pause;              // until the refresh after that; milliseconds
};

void sampling_prepare(struct sampling *sampling);           // when the agent starts
void sampling_begin(struct sampling *sampling);             // when the start delay is over
bool sampling_switch(struct sampling *sampling, bool on);   // false: sampling->problem says why
bool sampling_reset(struct sampling *sampling, const char **why);   // forgets all samples; false: `why` not
// Refreshes the executable ranges if need be. Returns when to call it again, in monotonic milliseconds, or 0.
int64_t sampling_work(struct sampling *sampling, int64_t now);

#endif
