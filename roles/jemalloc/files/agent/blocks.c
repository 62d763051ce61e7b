// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Our jemalloc is asked, without a lock: it knows of each address whether it lies in a block, and whether that lives.
// Its map of extents does not know the inner pages of a large block, so these are noted in a walk over all extents.
#include "blocks.h"

#include <string.h>

// How many of these are not above the address; each begins with its start.
static uint32_t below(const void *table, size_t entry, uint32_t count, uintptr_t address) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uintptr_t start;
        memcpy(&start, (const char *)table + middle * entry, sizeof start);
        if (start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sample *blocks_sample(const struct blocks *blocks, uintptr_t address) {
    uint32_t count = below(blocks->samples, sizeof *blocks->samples, blocks->sample_count, address);
    struct sample *sample = count ? &blocks->samples[count - 1] : NULL;
    return sample && address - sample->block.start < sample->block.size ? sample : NULL;
}

// A heap: libc's sort may allocate.
static void sift(struct sample *heap, uint32_t at, uint32_t count) {
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && heap[child + 1].block.start > heap[child].block.start;
        if (heap[at].block.start >= heap[child].block.start)
            return;
        struct sample held = heap[at];
        heap[at] = heap[child];
        heap[child] = held;
    }
}

static uint32_t bit_of(uintptr_t address) {
    return (uint32_t)(address * UINT64_C(0x9e3779b97f4a7c15) >> 32) % BLOCKS_BITS;
}

bool blocks_may_be_sample(const struct blocks *blocks, uintptr_t start) {
    uint32_t bit = bit_of(start);
    return blocks->begins[bit / 64] >> bit % 64 & 1;
}

void blocks_sort(struct blocks *blocks) {
    struct sample *samples = blocks->samples;
    uint32_t count = blocks->sample_count;
    for (uint32_t at = 0; at < count; at++) {
        uint32_t bit = bit_of(samples[at].block.start);
        blocks->begins[bit / 64] |= UINT64_C(1) << bit % 64;
    }
    for (uint32_t at = count / 2; at-- > 0;)
        sift(samples, at, count);
    for (uint32_t end = count; end-- > 1;) {
        struct sample largest = samples[0];
        samples[0] = samples[end];
        samples[end] = largest;
        sift(samples, 0, end);
    }
}

bool blocks_extent(struct blocks *blocks, uintptr_t address, uintptr_t *end) {
    void *start, *after;
    size_t size;
    enum je_block kind = blocks->find ? blocks->find((void *)address, &start, &size, &after) : JE_NOTHING;
    if (kind == JE_NOTHING)
        return false;
    *end = (uintptr_t)after;
    bool inner = (uintptr_t)start + size > address + 4096;
    if (kind == JE_LIVING && inner) {
        blocks->full |= blocks->large_count == BLOCKS_LARGE;
        if (!blocks->full)
            blocks->large[blocks->large_count++] = (struct block){(uintptr_t)start, size};
    }
    return true;
}

bool blocks_find(const struct blocks *blocks, uintptr_t address, struct block *block) {
    void *start, *after;
    if (address < blocks->low || address >= blocks->high)
        return false;
    if (!blocks->find) {
        const struct sample *sample = blocks_sample(blocks, address);
        if (sample)
            *block = sample->block;
        return sample != NULL;
    }
    switch (blocks->find((void *)address, &start, &block->size, &after)) {
    case JE_LIVING:
        block->start = (uintptr_t)start;
        return true;
    case JE_NOTHING: {
        uint32_t count = below(blocks->large, sizeof *blocks->large, blocks->large_count, address);
        if (!count || address - blocks->large[count - 1].start >= blocks->large[count - 1].size)
            return false;
        *block = blocks->large[count - 1];
        return true;
    }
    default:
        return false;
    }
}
