// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Reads the process's own memory through a file: what vanishes meanwhile is an error, and not a fault. Only pages that are
// there are read, within a budget.
#ifndef OFFHEAP_PAGES_H
#define OFFHEAP_PAGES_H

#include "descriptors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGES_PIECE 65536        // bytes that are read at once, at most
#define PAGES_CHUNK 256          // pages whose state is asked for at once
#define PAGES_CHUNKS 4096        // of which it is remembered
#define PAGES_PART 4096          // bytes that are read for a smaller block, since more such blocks lie there
#define PAGES_PARTS 4            // of a line
#define PAGES_LINE (PAGES_PARTS * PAGES_PART)
#define PAGES_LINES 64           // which are kept for a moment

struct pages_chunk {
    uintptr_t number;            // plus one; 0: none
    uint64_t present[PAGES_CHUNK / 64], swapped[PAGES_CHUNK / 64];
};

struct pages {
    struct owned memory, map;
    size_t page;                 // bytes
    int64_t began, now, wall, processor;   // monotonic milliseconds; how many of them, and of processor time, it may take
    int64_t used;                // processor time at its beginning
    bool first;                  // nobody else gets the processor while we want it
    bool late;                   // the budget is used up: nothing more is read
    uint64_t read;               // bytes
    uint64_t swapped, failed;    // bytes that should have been read: in swap, or the kernel refused
    unsigned turns;
    struct pages_chunk chunks[PAGES_CHUNKS];
    uintptr_t line[PAGES_LINES];     // number plus one
    int64_t line_read[PAGES_LINES];
    uint8_t known[PAGES_LINES];      // a bit for each part
    uint64_t lines[PAGES_LINES][PAGES_LINE / sizeof(uint64_t)];
    uint64_t words[PAGES_PIECE / sizeof(uint64_t)];
};

bool pages_open(struct pages *pages, int64_t milliseconds);   // of processor time. False with errno
void pages_close(struct pages *pages);
// The words of [at, at + size), at most PAGES_PIECE bytes of them, into pages->words; zeros where no page is. `at` is
// aligned to words. Returns how many; 0 if there is nothing to see, or no time.
size_t pages_words(struct pages *pages, uintptr_t at, size_t size);
// Where the run of pages that were ever touched begins in which `at` lies, not below `low`; at + 1: it lies in none.
uintptr_t pages_run(struct pages *pages, uintptr_t at, uintptr_t low);
// Where the next chunk begins; *any: whether one of its pages from `at` on may be there. Asked often; late when it is.
uintptr_t pages_next_chunk(struct pages *pages, uintptr_t at, bool *any);

#endif
