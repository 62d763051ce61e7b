// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Asks whichever it is. jemalloc calls the book through its hooks, the sampler calls it itself.
#include "feeder.h"

#include "mallctl.h"
#include "sampler.h"

#include <malloc.h>

static bool own;

void feeder_use_sampler(void) {
    own = true;
    je_leave_alone();
}

bool feeder_is_sampler(void) {
    return own;
}

void feeder_leave_out_this_thread(void) {
    if (own)
        sampler_leave_out_this_thread();
    else
        je_set_bool("thread.prof.active", false);
}

bool feeder_active(void) {
    bool active = false;
    if (own)
        return sampler_active();
    je_get_bool("prof.active", &active);
    return active;
}

bool feeder_switch(bool on) {
    return own ? sampler_switch(on) : je_set_bool("prof.active", on);
}

bool feeder_lg_interval(size_t *lg) {
    if (!own)
        return je_get_size("prof.lg_sample", lg);
    *lg = sampler_lg_interval();
    return true;
}

bool feeder_interval(size_t *bytes) {
    size_t lg;
    bool known = feeder_lg_interval(&lg);
    if (known)
        *bytes = (size_t)1 << lg;
    return known;
}

bool feeder_install_hook(void (*hook)(void **, unsigned *, unsigned)) {
    if (!own)
        return je_install_hook(hook);
    sampler_install_hook(hook);
    return true;
}

bool feeder_follow(void) {
    return own && sampler_follow();
}

size_t feeder_taken(void) {
    return own ? sampler_taken() : 0;
}

size_t feeder_detach(size_t *left) {
    *left = 0;
    return own ? sampler_detach(left) : 0;
}

uint64_t feeder_spent(void) {
    return own ? sampler_spent() : 0;
}

void feeder_describe(struct json *json) {
    json_string(json, "feeder", own ? "sampler" : "jemalloc");
    if (!own)
        return;
    json_unsigned(json, "entries", sampler_entries());
    json_unsigned(json, "unseen", sampler_unseen());
    json_seconds(json, "spent", (int64_t)(sampler_spent() / 1000000));
}

bool feeder_trim(void) {
    if (!own)
        return je_purge();
#ifdef __GLIBC__   // whoever the allocator is: under another one it finds nothing to give back
    return malloc_trim(0);
#else
    return false;
#endif
}

bool feeder_reset(const char **why) {
    *why = NULL;
    if (own)
        return true;   // all that it knows is in the book
    if (!je_is_patched())
        *why = "a reset while threads end can crash a service under this jemalloc, which is not the one that the "
               "role builds (jemalloc#2681)";
    else if (!je_reset())
        *why = "jemalloc refused the reset";
    return !*why;
}
