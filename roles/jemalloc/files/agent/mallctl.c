// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// mallctl(3) with types. The symbol is weak: in a process without jemalloc it is NULL, and the agent does nothing.
#include "mallctl.h"

#include <stdint.h>
#include <stdio.h>

extern int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) __attribute__((weak));

static bool left_alone;

void je_leave_alone(void) {
    left_alone = true;
}

static bool get(const char *name, void *value, size_t size) {
    size_t given = size;
    return je_present() && mallctl(name, value, &given, NULL, 0) == 0 && given == size;
}

static bool set(const char *name, void *value, size_t size) {
    return je_present() && mallctl(name, NULL, NULL, value, size) == 0;
}

bool je_present(void) {
    return mallctl != NULL && !left_alone;
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

bool je_owns(void *block) {
    unsigned arena;
    size_t size = sizeof arena;
    return block && je_present() && mallctl("arenas.lookup", &arena, &size, &block, sizeof block) == 0;
}

bool je_is_patched(void) {
    void (*hook)(const void *, size_t);
    return get("experimental.hooks.prof_sample_free", &hook, sizeof hook);
}

bool je_purge(void) {
    return set("arena.4096.purge", NULL, 0);   // of all arenas
}

bool je_reset(void) {
    return set("prof.reset", NULL, 0);
}

bool je_install_hook(void (*hook)(void **, unsigned *, unsigned)) {
    return set("experimental.hooks.prof_backtrace", &hook, sizeof hook);
}

bool je_install_ledger(je_birth *born, je_death *died) {
    // Deaths first, so that no birth misses its own.
    return set("experimental.hooks.prof_sample_free", &died, sizeof died) &&
           set("experimental.hooks.prof_sample", &born, sizeof born);
}

je_find *je_block_finder(void) {
    je_find *find;
    return get("experimental.blocks.find", &find, sizeof find) ? find : NULL;
}

bool je_visit_own(void (*visit)(void *context, const void *start, size_t size), void *context) {
    struct {
        void (*visit)(void *, const void *, size_t);
        void *context;
    } own = {visit, context};
    return set("experimental.blocks.own", &own, sizeof own);
}

void je_refresh_statistics(void) {
    uint64_t epoch = 1;
    size_t size = sizeof epoch;
    if (je_present())
        mallctl("epoch", &epoch, &size, &epoch, sizeof epoch);
}

bool je_living_blocks(size_t *count) {
    static const char *const names[] = {"stats.arenas.4096.small.", "stats.arenas.4096.large."};   // of all arenas
    je_refresh_statistics();
    *count = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        size_t made, freed;
        snprintf(name, sizeof name, "%snmalloc", names[i]);
        if (!je_get_size(name, &made))
            return false;
        snprintf(name, sizeof name, "%sndalloc", names[i]);
        if (!je_get_size(name, &freed))
            return false;
        *count += made > freed ? made - freed : 0;
    }
    return true;
}

bool je_small_blocks(unsigned number, size_t *size, size_t *count) {
    char name[64];
    snprintf(name, sizeof name, "arenas.bin.%u.size", number);
    if (!je_get_size(name, size))
        return false;
    snprintf(name, sizeof name, "stats.arenas.4096.bins.%u.curregs", number);
    return je_get_size(name, count);
}
