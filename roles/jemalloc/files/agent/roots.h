// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Where pointers begin: variables, threads, and memory that is no block.
#ifndef OFFHEAP_ROOTS_H
#define OFFHEAP_ROOTS_H

#include "objects.h"
#include "reach.h"
#include "threads.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROOTS_AREAS 32768
#define ROOTS_NAMES (256 * 1024)

struct roots_range {
    uintptr_t start, end;
};

struct roots_area {
    struct roots_range range;
    const char *name;            // "" if it has none
    bool anonymous;
};

struct roots {
    struct reach *reach;
    struct objects *objects;
    struct threads *threads;
    bool full;                   // something did not fit
    struct roots_range java;     // its heap
    uint32_t area_count, rest_count, out_count;
    struct roots_area area[ROOTS_AREAS];     // what can be written to, or could
    struct roots_range rest[ROOTS_AREAS];    // of these, what is not the allocator's
    struct roots_range out[ROOTS_AREAS];     // no holders, and what is looked at by itself; sorted, apart
    uint64_t waiting;            // blocks in a thread's cache, to be used again
    uint32_t waiting_of[REACH_SMALL / 8];   // those of each size, in words
    size_t names_used;
    char names[ROOTS_NAMES];
};

void roots_leave_out(struct roots *roots, uintptr_t start, uintptr_t end);   // no pointer in there holds anything
bool roots_look(struct roots *roots);    // lists all memory and, in reach->blocks, the blocks. False: it cannot be listed
void roots_follow(struct roots *roots);  // variables first, then threads, then the rest
void roots_follow_epolls(struct roots *roots);   // what only the kernel has

#endif
