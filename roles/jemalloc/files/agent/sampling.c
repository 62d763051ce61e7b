// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Sampling stays off during the start delay, whoever asks for it: the service may still be in its static
// initialisation. Once it is on, the ranges of executable memory must be kept fresh for the unwinder.
#include "sampling.h"

#include "clock.h"
#include "feeder.h"
#include "images.h"
#include "ledger.h"
#include "ranges.h"

#include <errno.h>
#include <string.h>

#define PAUSE 1000        // milliseconds between two looks at the maps when addresses are not found
#define PAUSE_MAX 64000   // the same, when looking never helps

void sampling_prepare(struct sampling *sampling) {
    sampling->wanted = feeder_active() || !sampling->config->dormant;
    sampling->begin_at = sampling->facts->started + sampling->config->start_delay * 1000;
}

// Asks, since the service may switch sampling itself.
static void note_activity(struct facts *facts) {
    if (!feeder_active())
        facts->active_since = 0;
    else if (!facts->active_since)
        facts->active_since = clock_now();
}

static void begin_ledger(struct sampling *sampling) {
    if (!ledger_begin())
        problem_note(sampling->problem, "dumps are without lives: the kernel gives no memory for them (%s)", strerror(errno));
}

bool sampling_switch(struct sampling *sampling, bool on) {
    sampling->wanted = on;
    if (!sampling->begun)
        return true;
    if (on && !feeder_active())
        begin_ledger(sampling);
    bool done = feeder_switch(on);
    if (!done)
        problem_note(sampling->problem, "jemalloc does not let the agent set prof.active");
    note_activity(sampling->facts);
    return done;
}

bool sampling_reset(struct sampling *sampling, const char **why) {
    if (!feeder_reset(why))
        return false;
    begin_ledger(sampling);
    sampling->facts->active_since = 0;   // what was allocated before is in no dump any more
    note_activity(sampling->facts);
    return true;
}

void sampling_begin(struct sampling *sampling) {
    sampling->begun = true;
    sampling->facts->unwinder = unwind_prepare(sampling->config->unwinder, &sampling->unwinder_why);
    if (sampling->wanted)
        sampling_switch(sampling, true);
    note_activity(sampling->facts);
    sampling->pause = PAUSE;
}

int64_t sampling_work(struct sampling *sampling, int64_t now) {
    bool follows = feeder_follow();
    size_t taken = feeder_taken();
    if (taken && feeder_active()) {   // of what lives by now nobody would see the end: all of it would look like a leak
        sampling_switch(sampling, false);
        problem_note(sampling->problem, "another tool has put its functions into %zu of the entries that led to the agent, "
                     "so sampling is off", taken);
    }
    if (sampling->facts->active_since)
        images_note();
    if (!sampling->facts->active_since || sampling->facts->unwinder == UNWINDER_BUILTIN)
        return follows ? now + PAUSE : 0;
    if (now >= sampling->next_refresh && ranges_wanted()) {
        bool news = ranges_refresh();
        sampling->pause = news ? PAUSE : sampling->pause * 2;
        if (sampling->pause > PAUSE_MAX)
            sampling->pause = PAUSE_MAX;
        sampling->next_refresh = now + sampling->pause;
    }
    return now + PAUSE;
}
