// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Resident memory counts without files and shared memory (statm in proc(5)). A dump is due when there is more of it by a
// share than at any dump before: while memory rises and falls there is none, and a process that grows a thousandfold
// takes some forty. Those that somebody asked for do not count. The cgroup's memory.events and memory.pressure are described in the kernel's cgroup-v2.rst and
// psi.rst; where they cannot be read, nothing is due for their sake.
#include "trigger.h"

#include "clock.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAUSE 1000            // milliseconds between two looks
#define PAUSE_MIN 100         // the same, when memory grows fast
#define LEAST_STEP (8 << 20)  // bytes
#define REST 19               // times as long as the dump took: dumps take a twentieth of the time at most
#define CALM 600000           // milliseconds between two dumps for the cgroup's sake
#define STALLED 10            // percent of the time

static void take(struct owned *owned, const char *path) {
    (void)owned_take(owned, open(path, O_RDONLY | O_CLOEXEC));
}

// A file from its start into a text. False if it cannot be read.
static bool look(const struct owned *owned, char *text, size_t size) {
    ssize_t length = owned_still(owned) ? pread(owned->fd, text, size - 1, 0) : -1;
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

// The number behind a name in a text; 0 if it is not there.
static int64_t number_after(const char *text, const char *name) {
    const char *at = strstr(text, name);
    return at ? strtoll(at + strlen(name), NULL, 10) : 0;
}

static int64_t resident(const struct trigger *trigger) {
    char statm[256];
    return look(&trigger->statm, statm, sizeof statm) ? facts_resident(statm) : 0;
}

static int64_t times_limited(const struct trigger *trigger) {
    char text[256];
    if (!look(&trigger->events, text, sizeof text))
        return 0;
    return number_after(text, "\nhigh ") + number_after(text, "\nmax ");
}

static int64_t microseconds_stalled(const struct trigger *trigger) {
    char text[256];
    return look(&trigger->pressure, text, sizeof text) ? number_after(text, "total=") : 0;
}

void trigger_prepare(struct trigger *trigger) {
    char group[PATH_MAX], path[PATH_MAX + 64];
    trigger->statm.fd = trigger->events.fd = trigger->pressure.fd = -1;
    if (trigger->config->dump_growth)
        take(&trigger->statm, "/proc/thread-self/statm");   // the main thread may end
    if (!trigger->config->dump_pressure || !facts_cgroup(group, sizeof group))
        return;
    snprintf(path, sizeof path, "%s/memory.events", group);
    take(&trigger->events, path);
    snprintf(path, sizeof path, "%s/memory.pressure", group);
    take(&trigger->pressure, path);
}

void trigger_close(struct trigger *trigger) {
    owned_close(&trigger->statm);
    owned_close(&trigger->events);
    owned_close(&trigger->pressure);
}

void trigger_forget_in_child(struct trigger *trigger) {
    if (!descriptors_are_private())   // else none of them was inherited
        trigger_close(trigger);
}

static int64_t step(const struct trigger *trigger) {
    int64_t share = trigger->highest / 100 * trigger->config->dump_growth;
    return share > LEAST_STEP ? share : LEAST_STEP;
}

// Sooner than after PAUSE if the next step will be reached sooner at the present rate.
static int64_t next_look(const struct trigger *trigger, int64_t grown, int64_t now) {
    if (grown <= 0 || now <= trigger->looked || trigger->statm.fd < 0)
        return PAUSE;
    double left = (double)(trigger->highest + step(trigger) - trigger->resident);
    double time = left / (double)grown * (double)(now - trigger->looked) / 2;
    return time < PAUSE_MIN ? PAUSE_MIN : time < PAUSE ? (int64_t)time : PAUSE;
}

const char *trigger_reason(struct trigger *trigger, int64_t now) {
    if (trigger->statm.fd < 0 && trigger->events.fd < 0 && trigger->pressure.fd < 0)
        return NULL;
    if (!trigger->facts->active_since) {
        trigger->highest = trigger->next = 0;
        return NULL;
    }
    bool first = !trigger->highest;
    if (!first && now < trigger->next)
        return NULL;
    int64_t before = trigger->resident, limited = trigger->limited, stalled = trigger->stalled;
    trigger->resident = resident(trigger);
    trigger->limited = times_limited(trigger);
    trigger->stalled = microseconds_stalled(trigger);
    if (first)
        trigger->highest = trigger->resident ? trigger->resident : 1;
    trigger->next = now + next_look(trigger, first ? 0 : trigger->resident - before, now);
    int64_t waited = trigger->stalled - stalled, most = (now - trigger->looked) * 1000 / 100 * STALLED;
    trigger->looked = now;
    if (first || now < trigger->rests)
        return NULL;
    if (trigger->statm.fd >= 0 && trigger->resident >= trigger->highest + step(trigger))
        return "growth";
    if (now < trigger->calm)
        return NULL;
    const char *reason = trigger->limited > limited ? "memory-limit" : waited > most ? "memory-pressure" : NULL;
    if (reason)
        trigger->calm = now + CALM;
    return reason;
}

void trigger_dumped(struct trigger *trigger, int64_t milliseconds) {
    int64_t now = resident(trigger);
    if (trigger->highest && now > trigger->highest)
        trigger->highest = now;
    trigger->rests = clock_monotonic() + REST * milliseconds;
}

int64_t trigger_next(const struct trigger *trigger) {
    return trigger->next;
}
