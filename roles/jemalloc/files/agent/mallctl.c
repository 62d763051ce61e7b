// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// mallctl(3) with types. The symbol is weak: in a process without jemalloc it is NULL, and the agent does nothing.
#include "mallctl.h"

#include <stdint.h>

extern int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) __attribute__((weak));

static bool get(const char *name, void *value, size_t size) {
    size_t given = size;
    return mallctl && mallctl(name, value, &given, NULL, 0) == 0 && given == size;
}

static bool set(const char *name, void *value, size_t size) {
    return mallctl && mallctl(name, NULL, NULL, value, size) == 0;
}

bool je_present(void) {
    return mallctl != NULL;
}

bool je_get_bool(const char *name, bool *value) {
    return get(name, value, sizeof *value);
}

bool je_set_bool(const char *name, bool value) {
    return set(name, &value, sizeof value);
}

bool je_get_size(const char *name, size_t *value) {
    return get(name, value, sizeof *value);
}

const char *je_get_string(const char *name) {
    const char *value = NULL;
    return get(name, &value, sizeof value) ? value : NULL;
}

bool je_dump(const char *path) {
    return set("prof.dump", &path, sizeof path);
}

bool je_set_prefix(const char *prefix) {
    return set("prof.prefix", &prefix, sizeof prefix);
}

bool je_reset(const size_t *lg_sample) {
    size_t value = lg_sample ? *lg_sample : 0;
    return lg_sample ? set("prof.reset", &value, sizeof value) : set("prof.reset", NULL, 0);
}

bool je_install_hook(void (*hook)(void **, unsigned *, unsigned)) {
    return set("experimental.hooks.prof_backtrace", &hook, sizeof hook);
}

void je_refresh_statistics(void) {
    uint64_t epoch = 1;
    size_t size = sizeof epoch;
    if (mallctl)
        mallctl("epoch", &epoch, &size, &epoch, sizeof epoch);
}
