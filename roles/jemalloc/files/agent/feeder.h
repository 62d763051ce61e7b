// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Who draws the samples: jemalloc, or the agent's own sampler in a process that keeps its allocator.
#ifndef OFFHEAP_FEEDER_H
#define OFFHEAP_FEEDER_H

#include "json.h"

#include <stdbool.h>
#include <stddef.h>

void feeder_use_sampler(void);          // instead of jemalloc, from now on
bool feeder_is_sampler(void);
void feeder_leave_out_this_thread(void);
bool feeder_active(void);
bool feeder_switch(bool on);
bool feeder_interval(size_t *bytes);    // false: not known
bool feeder_lg_interval(size_t *lg);    // the same
bool feeder_install_hook(void (*hook)(void **, unsigned *, unsigned));   // the unwinder
bool feeder_follow(void);               // what the process opens and closes; true: call it each second
size_t feeder_taken(void);              // how many of the sampler's entries another tool has led elsewhere
size_t feeder_detach(size_t *left);      // of the sampler: how many entries it put back, and how many it could not
uint64_t feeder_spent(void);            // nanoseconds that the sampler has taken
void feeder_describe(struct json *json);
bool feeder_trim(void);                 // the allocator gives back what it keeps; false: it cannot
bool feeder_reset(const char **why);    // forgets all samples; false: *why says why not

#endif
