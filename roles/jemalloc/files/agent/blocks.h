// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Which block lies at an address.
#ifndef OFFHEAP_BLOCKS_H
#define OFFHEAP_BLOCKS_H

#include "mallctl.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCKS_LARGE (1u << 17)
#define BLOCKS_BITS (1u << 17)

struct block {
    uintptr_t start;
    size_t size;                 // usable
};

struct sample {                  // a block that the book knows
    struct block block;
    uint32_t object;             // its place in the copy of the book
    uint16_t holder;             // a node of reach.h; 0: none was found
};

struct blocks {
    je_find *find;               // NULL: the allocator cannot be asked, and the samples are all that is known
    struct sample *samples;      // in the order of their addresses
    uint32_t sample_count;
    uintptr_t low, high;         // where blocks may lie
    uint64_t begins[BLOCKS_BITS / 64];  // a bit for each sample's address, hashed: most blocks are none, and need no search
    uint32_t large_count;
    bool full;                   // there are more large blocks than can be noted
    struct block large[BLOCKS_LARGE];   // whose inner pages the allocator does not know, in the order of their addresses
};

// What is known of an address: the allocator's, of which [address, *end) is the rest of an extent, or not.
bool blocks_extent(struct blocks *blocks, uintptr_t address, uintptr_t *end);   // notes a large block that it meets
bool blocks_find(const struct blocks *blocks, uintptr_t address, struct block *block);   // one that lives
struct sample *blocks_sample(const struct blocks *blocks, uintptr_t address);   // the one around it; NULL: none
bool blocks_may_be_sample(const struct blocks *blocks, uintptr_t start);   // false: none begins there
void blocks_sort(struct blocks *blocks);   // the samples, once all are there

#endif
