// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// When the next dump and the next line of statistics are due. Whoever asks takes them: the schedule knows only time.
#ifndef OFFHEAP_SCHEDULE_H
#define OFFHEAP_SCHEDULE_H

#include "config.h"

#include <stdbool.h>
#include <stdint.h>

struct schedule {
    struct config *config;
    int64_t next_dump, next_stats;   // monotonic milliseconds; 0: never
};

void schedule_change(struct schedule *schedule, const struct config *config);
bool schedule_dump_is_due(struct schedule *schedule, int64_t now);   // if so, sets the next time
bool schedule_stats_are_due(struct schedule *schedule, int64_t now);   // the same
int64_t schedule_next(const struct schedule *schedule);   // the earlier of the two; 0: never

#endif
