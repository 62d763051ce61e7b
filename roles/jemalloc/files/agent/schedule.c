// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The clock of dumps and statistics. A new period starts a new wait; other changes leave the running one alone.
#include "schedule.h"

#include "clock.h"

void schedule_change(struct schedule *schedule, const struct config *config) {
    int64_t now = clock_monotonic();
    if (config->dump_seconds != schedule->config->dump_seconds || !schedule->next_dump)
        schedule->next_dump = config->dump_seconds ? now + config->dump_seconds * 1000 : 0;
    if (config->stats_seconds != schedule->config->stats_seconds || !schedule->next_stats)
        schedule->next_stats = config->stats_seconds ? now + config->stats_seconds * 1000 : 0;
    *schedule->config = *config;
}

static bool is_due(int64_t *when, int64_t period, int64_t now) {
    if (!*when || now < *when)
        return false;
    *when += period;
    if (*when <= now)
        *when = now + period;   // late by more than a period: the machine slept
    return true;
}

bool schedule_dump_is_due(struct schedule *schedule, int64_t now) {
    return is_due(&schedule->next_dump, schedule->config->dump_seconds * 1000, now);
}

bool schedule_stats_are_due(struct schedule *schedule, int64_t now) {
    return is_due(&schedule->next_stats, schedule->config->stats_seconds * 1000, now);
}

int64_t schedule_next(const struct schedule *schedule) {
    bool stats_first = schedule->next_stats && (!schedule->next_dump || schedule->next_stats < schedule->next_dump);
    return stats_first ? schedule->next_stats : schedule->next_dump;
}
