// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The files that the loader has opened: where their variables lie, their types, and their thread-local memory.
#ifndef OFFHEAP_OBJECTS_H
#define OFFHEAP_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OBJECTS 1024
#define OBJECTS_RANGES (2 * OBJECTS)
#define OBJECTS_NAMES (256 * 1024)

struct objects_range {
    uintptr_t start, end;
    uintptr_t bias;              // what its addresses in memory are above those in the file
    int16_t file;
};

struct objects {
    bool full;                   // there are more than can be noted
    int16_t count;
    const char *path[OBJECTS];
    bool left_out[OBJECTS];      // the agent's own, and the allocator's: no holders
    int data_count, constant_count, thread_count;
    struct objects_range data[OBJECTS_RANGES];       // what is written to, of all files
    struct objects_range constant[OBJECTS];          // what the loader alone wrote to: virtual tables. Sorted
    struct objects_range thread[OBJECTS];            // thread-local memory, relative to pthread_self()
    intptr_t thread_low, thread_high;
    size_t names_used;
    char names[OBJECTS_NAMES];
};

void objects_look(struct objects *objects, const void *allocator);   // an address in the allocator's file; NULL: none
// The table that a block's first word points to, if it may be one of virtual functions.
void objects_type(const struct objects *objects, uint64_t word, int16_t *file, uint64_t *at);
// The variable that a word points to, if any: a Python object's type is one, of the interpreter's or of an extension's.
void objects_variable(const struct objects *objects, uint64_t word, int16_t *file, uint64_t *at);
// Of an address relative to pthread_self(), the file whose thread-local variable it is, or -1; and where behind their start.
int16_t objects_thread_local(const struct objects *objects, intptr_t relative, uint64_t *at);

#endif
