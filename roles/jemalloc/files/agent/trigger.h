// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Dumps that memory asks for, so that one exists from shortly before the kernel kills the process.
#ifndef OFFHEAP_TRIGGER_H
#define OFFHEAP_TRIGGER_H

#include "config.h"
#include "descriptors.h"
#include "facts.h"

#include <stdint.h>

struct trigger {
    const struct config *config;
    const struct facts *facts;
    struct owned statm, events, pressure;   // opened when the agent starts: the service may change its root later
    int64_t highest;     // bytes resident at the dump with the most; 0: sampling was off
    int64_t resident;    // at the last look
    int64_t looked;      // monotonic milliseconds, as the next three
    int64_t next;        // look
    int64_t rests;       // until then, so that dumps take a small part of the time
    int64_t calm;        // until then, no dump for the cgroup's sake
    int64_t limited;     // times that the cgroup reached memory.high or memory.max
    int64_t stalled;     // microseconds that tasks of the cgroup waited for memory
};

void trigger_prepare(struct trigger *trigger);          // when the agent starts
void trigger_close(struct trigger *trigger);
void trigger_forget_in_child(struct trigger *trigger);
// Why a dump is due now; NULL: none is. Looks at most ten times a second.
const char *trigger_reason(struct trigger *trigger, int64_t now);
void trigger_dumped(struct trigger *trigger, int64_t milliseconds);   // a dump was tried, and took so long
int64_t trigger_next(const struct trigger *trigger);    // when to look again; 0: never

#endif
