// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A sorted table of executable memory. The agent's thread makes it from the process's maps; the unwinder searches it
// inside malloc, without a lock and without a system call.
//
// There are two tables. The writer fills the one that is not in use and then increments the generation. A reader that
// finds the generation changed after its search may have read a table being written, and searches again.
//
// JIT code appears between two refreshes. Runtimes reserve address space for it (HotSpot's code cache, V8's code
// range) and make it executable from there piece by piece, so reserved anonymous memory that touches executable
// anonymous memory counts as code. An address in no range ends its walk and asks for a refresh.
#include "ranges.h"

#include "hotspot.h"
#include "maps.h"

#include <stdatomic.h>
#include <string.h>

#define RANGES 4096

struct range {
    _Atomic uintptr_t start, end;
    atomic_bool file;
};

static struct range tables[2][RANGES];
static _Atomic size_t sizes[2];
static atomic_uint generation;   // of the table in use: tables[generation & 1]
static atomic_bool missed;
static struct maps_reader reader;

static bool search(const struct range *table, size_t size, uintptr_t address, struct code *found) {
    size_t low = 0, high = size < RANGES ? size : RANGES;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        found->start = atomic_load_explicit(&table[middle].start, memory_order_relaxed);
        found->end = atomic_load_explicit(&table[middle].end, memory_order_relaxed);
        if (address < found->start)
            high = middle;
        else if (address >= found->end)
            low = middle + 1;
        else {
            found->file = atomic_load_explicit(&table[middle].file, memory_order_relaxed);
            return true;
        }
    }
    return false;
}

bool ranges_executable(uintptr_t address, struct code *last) {
    if (address >= last->start && address < last->end)
        return true;
    struct code at;
    for (int attempt = 0; attempt < 3; attempt++) {
        unsigned before = atomic_load_explicit(&generation, memory_order_acquire);
        size_t size = atomic_load_explicit(&sizes[before & 1], memory_order_relaxed);
        bool found = search(tables[before & 1], size, address, &at);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&generation, memory_order_relaxed) != before)
            continue;
        if (found)
            *last = at;
        else
            atomic_store_explicit(&missed, true, memory_order_relaxed);
        return found;
    }
    return false;
}

bool ranges_wanted(void) {
    return atomic_load_explicit(&missed, memory_order_relaxed);
}

static bool add(struct range *table, size_t *size, uintptr_t start, uintptr_t end, bool file) {
    if (*size && atomic_load_explicit(&table[*size - 1].end, memory_order_relaxed) == start &&
        atomic_load_explicit(&table[*size - 1].file, memory_order_relaxed) == file) {
        atomic_store_explicit(&table[*size - 1].end, end, memory_order_relaxed);
        return true;
    }
    if (*size == RANGES)
        return false;
    atomic_store_explicit(&table[*size].start, start, memory_order_relaxed);
    atomic_store_explicit(&table[*size].end, end, memory_order_relaxed);
    atomic_store_explicit(&table[*size].file, file, memory_order_relaxed);
    ++*size;
    return true;
}

static bool equal(size_t size) {
    if (size != atomic_load_explicit(&sizes[0], memory_order_relaxed) ||
        size != atomic_load_explicit(&sizes[1], memory_order_relaxed))
        return false;
    for (size_t i = 0; i < size; i++)
        if (tables[0][i].start != tables[1][i].start || tables[0][i].end != tables[1][i].end ||
            tables[0][i].file != tables[1][i].file)
            return false;
    return true;
}

static bool is_libjvm(const char *path) {
    const char *name = strrchr(path, '/');
    return name && !strcmp(name, "/libjvm.so");
}

bool ranges_refresh(void) {
    unsigned current = atomic_load_explicit(&generation, memory_order_relaxed);
    unsigned next = (current + 1) & 1;
    size_t size = 0;
    struct mapping mapping;
    uintptr_t reserved = 0, code_end = 0, reserved_end = 0;   // of the mapping below
    atomic_store_explicit(&missed, false, memory_order_relaxed);
    if (!maps_open(&reader))
        return false;
    // A reader of the generation before `current` may still be searching this table, and will notice.
    atomic_thread_fence(memory_order_release);
    while (maps_next(&reader, &mapping)) {
        bool jit = mapping.anonymous && mapping.executable, spare = mapping.anonymous && mapping.none;
        bool kept = true;
        if (mapping.executable && is_libjvm(mapping.path))
            hotspot_find();
        if (jit && reserved && reserved_end == mapping.start)
            kept = add(tables[next], &size, reserved, reserved_end, false);
        if (kept && (mapping.executable || (spare && code_end == mapping.start)))
            kept = add(tables[next], &size, mapping.start, mapping.end, !mapping.anonymous);
        if (!kept)
            break;   // far more than processes have; a walk ends where the table does
        reserved = spare && code_end != mapping.start ? mapping.start : 0;
        reserved_end = mapping.end;
        code_end = jit ? mapping.end : 0;
    }
    maps_close(&reader);
    atomic_store_explicit(&sizes[next], size, memory_order_relaxed);
    bool news = !equal(size);
    atomic_store_explicit(&generation, current + 1, memory_order_release);
    return news;
}
