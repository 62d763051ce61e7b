// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Each block that can be reached is read once, breadth first, so that the way to a sample is the shortest. A way is not kept
// as blocks but as their kind: the root, and sizes and types of what lies between. So few are told apart, however many
// blocks there are, and a list of any length is one step.
//
// What the queue holds is sorted by address, so that neighbours are read at once. When it is more than half full (by the
// entries of a large hash table), blocks wait in a bitmap instead, which is sorted by itself; those that cannot wait there
// are followed from the queue's end, sorted too: depth first.
//
// Most of a process's memory is data without pointers. Where many blocks of one kind have led to nothing new, the others
// are put off; they need not be read if each sample is found without them.
#include "reach.h"

#include <string.h>

#if defined(__x86_64__)
#define ADDRESS (UINT64_MAX >> 17)   // that a process has, unless it asks for others
#else
#define ADDRESS (UINT64_MAX >> 16)
#endif

static uint32_t place_of(const struct reach_node *node) {
    uint64_t hash = node->parent + ((uint64_t)node->kind << 20) + ((uint64_t)(uint16_t)node->file << 24) + ((uint64_t)node->tid << 40);
    hash = (hash ^ node->at) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 32 ^ node->size) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(hash >> 48);
}

static bool alike(const struct reach_node *a, const struct reach_node *b) {
    return a->kind == b->kind && a->file == b->file && a->at == b->at && a->size == b->size && a->tid == b->tid;
}

uint16_t reach_node(struct reach *reach, struct reach_node node) {
    uint32_t *place = &reach->places[place_of(&node)];
    for (uint32_t at = *place; at; at = reach->node[at].next)
        if (reach->node[at].parent == node.parent && alike(&reach->node[at], &node))
            return (uint16_t)at;
    if (reach->nodes >= (node.kind == REACH_BLOCK ? REACH_NODES - REACH_NODES / 4 : REACH_NODES - 1))
        return node.kind == REACH_BLOCK ? node.parent : REACH_UNKNOWN;   // told less exactly
    node.next = *place;
    *place = ++reach->nodes;
    reach->node[*place] = node;
    return (uint16_t)*place;
}

// The node of a block that `parent` leads to. One like its parent, or its parent's parent, is more of the same.
static uint16_t step(struct reach *reach, uint16_t parent, struct block block, uint64_t first) {
    struct reach_node node = {.parent = parent, .kind = REACH_BLOCK, .file = -1, .size = block.size};
    objects_type(reach->objects, first, &node.file, &node.at);
    for (uint16_t above = parent, level = 0; level < 2 && reach->node[above].kind == REACH_BLOCK; level++) {
        if (alike(&reach->node[above], &node)) {
            reach->node[above].many = true;
            return above;
        }
        above = reach->node[above].parent;
    }
    if (reach->node[parent].depth >= REACH_DEPTH)
        return parent;
    node.depth = (uint8_t)(reach->node[parent].depth + 1);
    return reach_node(reach, node);
}

// Which part of the marks is this address's mebibyte; REACH_PARTS if it has none, and `make` is not set or there is no room.
static uint32_t part_of(struct reach *reach, uintptr_t address, bool make) {
    uintptr_t number = address / REACH_CHUNK;
    uint32_t at = reach->last;
    if (reach->chunks[at] != number + 1) {
        at = (uint32_t)((number * UINT64_C(0x9e3779b97f4a7c15)) >> 32) % REACH_CHUNKS;
        while (reach->chunks[at] && reach->chunks[at] != number + 1)
            at = (at + 1) % REACH_CHUNKS;
        if (!reach->chunks[at]) {
            if (!make || reach->parts == REACH_PARTS)
                return REACH_PARTS;
            reach->chunks[at] = number + 1;
            reach->starts[reach->parts] = number * REACH_CHUNK;
            reach->part_of[at] = reach->parts++;
        }
        reach->last = at;
    }
    return reach->part_of[at];
}

// Where this block's mark is; NULL if there is no room for one.
static uint64_t *mark_of(struct reach *reach, uintptr_t start, uint64_t *bit) {
    uint32_t part = part_of(reach, start, true), at = start % REACH_CHUNK / 8;
    reach->full |= part == REACH_PARTS;
    *bit = UINT64_C(1) << at % 64;
    return part == REACH_PARTS ? NULL : &reach->seen[part][at / 64];
}

// Whether it is marked now, and was not before.
static bool mark(struct reach *reach, uintptr_t start) {
    uint64_t bit, *seen = mark_of(reach, start, &bit);
    if (!seen || *seen & bit)
        return false;
    *seen |= bit;
    return true;
}

// Of what variables lead to, those of one size are alike: a table's elements are a node each.
static uint8_t *dull(struct reach *reach, uint16_t node, size_t size) {
    node = reach->node[node].kind == REACH_BLOCK ? node : 0;
    return &reach->dull[((size << 16 | node) * UINT64_C(0x9e3779b97f4a7c15)) >> 48];
}

static bool is_put_off(const struct reach *reach, uint32_t part, uint32_t page) {
    return reach->put_off[part][page / 64] >> page % 64 & 1;
}

// False if it cannot: the blocks of a page wait as one node, and all or none of them are put off.
static bool let_wait(struct reach *reach, uintptr_t address, uint16_t node, bool later) {
    uint32_t part = address % REACH_ALIGNED ? REACH_PARTS : part_of(reach, address, false);
    if (part == REACH_PARTS)
        return false;
    uint32_t at = address % REACH_CHUNK / REACH_ALIGNED, page = at / 64 / REACH_TOGETHER;
    uint64_t *bits = &reach->waiting[part][page * REACH_TOGETHER], any = 0;
    for (int i = 0; i < REACH_TOGETHER; i++)
        any |= bits[i];
    if (any && (reach->waits_as[part][page] != node || is_put_off(reach, part, page) != later))
        return false;
    if (is_put_off(reach, part, page) != later)
        reach->put_off[part][page / 64] ^= UINT64_C(1) << page % 64;
    reach->waits_as[part][page] = node;
    reach->waiting[part][at / 64] |= UINT64_C(1) << at % 64;
    reach->waiting_count[part] += !later;
    return true;
}

// Whether this block is one of many that led to nothing new, and waits until all others have been read.
static bool put_off(struct reach *reach, struct block block, uint16_t node) {
    return !reach->none_is_dull && *dull(reach, node, block.size) == REACH_DULL && let_wait(reach, block.start, node, true);
}

static void push(struct reach *reach, uintptr_t address, uint16_t node) {
    if (reach->some_wait && let_wait(reach, address, node, false))
        return;
    if (reach->count == REACH_QUEUE)
        reach->full = true;
    else
        reach->queue[(reach->head + reach->count++) % REACH_QUEUE] = (uint64_t)address << 16 | node;
}

// Programs keep marks and counts in the bits that no address has, as boost::lockfree does.
static bool leads_to(const struct reach *reach, uint64_t word, struct block *block) {
    const struct blocks *blocks = reach->blocks;
    word &= ADDRESS;
    return word - blocks->low < blocks->high - blocks->low && blocks_find(blocks, word, block);
}

bool reach_is_new(struct reach *reach, uint64_t word, size_t *size) {
    struct block block;
    if (!leads_to(reach, word, &block))
        return false;
    uint64_t bit;
    const uint64_t *seen = mark_of(reach, block.start, &bit);
    *size = block.size;
    return seen && !(*seen & bit);
}

void reach_point(struct reach *reach, uint64_t word, uint16_t node) {
    struct block block;
    if (!leads_to(reach, word, &block) || !mark(reach, block.start))
        return;
    struct sample *sample = blocks_may_be_sample(reach->blocks, block.start) ? blocks_sample(reach->blocks, block.start) : NULL;
    if (sample && sample->block.start == block.start)
        sample->holder = node;
    reach->marked++;
    if (block.size < REACH_SMALL)
        reach->marked_of[block.size / 8]++;
    if (!put_off(reach, block, node))
        push(reach, block.start, node);
}

void reach_leave_out(struct reach *reach, uintptr_t address) {
    struct block block;
    if (blocks_find(reach->blocks, address, &block) && !blocks_sample(reach->blocks, block.start))
        mark(reach, block.start);
}

static void point(struct reach *reach, size_t count, uint16_t node) {
    for (size_t i = 0; i < count; i++)
        reach_point(reach, reach->pages->words[i], node);
}

// A block, or a piece of a large one: then the node is already its own.
static void follow(struct reach *reach, uintptr_t address, uint16_t node) {
    struct block block, same;
    if (!blocks_find(reach->blocks, address, &block))
        return;   // it was freed meanwhile
    size_t size = block.start + block.size - address;
    if (address != block.start) {
        point(reach, pages_words(reach->pages, address, size), node);
        return;
    }
    uint64_t marked = reach->marked;
    uint8_t *led_nowhere = dull(reach, node, size);
    size_t count = pages_words(reach->pages, address, size);
    node = step(reach, node, block, count ? reach->pages->words[0] : 0);
    point(reach, count, node);
    for (size_t at = PAGES_PIECE; at < size; at += PAGES_PIECE) {
        if (blocks_find(reach->blocks, address + at, &same) && same.start == address)
            push(reach, address + at, node);
        else
            point(reach, pages_words(reach->pages, address + at, size - at), node);   // it is new: nobody knows its inner pages
    }
    if (reach->marked != marked)
        *led_nowhere = REACH_DULL + 1;
    else
        *led_nowhere += *led_nowhere < REACH_DULL;
}

// What was put off in the page of this block, which has just been read.
static void follow_beside(struct reach *reach, uintptr_t address) {
    uint32_t part = part_of(reach, address, false), page = address % REACH_CHUNK / REACH_ALIGNED / 64 / REACH_TOGETHER;
    if (part == REACH_PARTS || !is_put_off(reach, part, page))
        return;
    uint64_t bits[REACH_TOGETHER], *all = &reach->waiting[part][page * REACH_TOGETHER];
    uint16_t node = reach->waits_as[part][page];
    memcpy(bits, all, sizeof bits);
    memset(all, 0, sizeof bits);   // first, since others may begin to wait there
    for (uint32_t at = 0; at < REACH_TOGETHER; at++)
        for (; bits[at] && !reach->pages->late; bits[at] &= bits[at] - 1) {
            uint32_t bit = (page * REACH_TOGETHER + at) * 64 + (uint32_t)__builtin_ctzll(bits[at]);
            follow(reach, reach->starts[part] + bit * REACH_ALIGNED, node);
        }
}

void reach_begin(struct reach *reach) {
    reach_node(reach, (struct reach_node){.kind = REACH_MAPPED, .file = -1});
}

static void swap(uint64_t *a, uint64_t *b) {
    uint64_t held = *a;
    *a = *b;
    *b = held;
}

// libc's may allocate.
void reach_sort(uint64_t *entries, size_t count) {
    while (count > 1) {
        size_t low = 0, high = count - 1;
        uint64_t pivot = entries[(count - 1) / 2];
        for (;; low++, high--) {
            while (entries[low] < pivot)
                low++;
            while (entries[high] > pivot)
                high--;
            if (low >= high)
                break;
            swap(&entries[low], &entries[high]);
        }
        size_t left = high + 1, right = count - left;   // the longer part is next, so that few calls are open at a time
        if (left < right) {
            reach_sort(entries, left);
            entries += left;
            count = right;
        } else {
            reach_sort(entries + left, right);
            count = left;
        }
    }
}

static uint64_t take_first(struct reach *reach) {
    uint64_t first = reach->queue[reach->head];
    reach->head = (reach->head + 1) % REACH_QUEUE;
    reach->count--;
    return first;
}

static uint64_t take_last(struct reach *reach) {
    return reach->queue[(reach->head + --reach->count) % REACH_QUEUE];
}

static void follow_entry(struct reach *reach, uint64_t entry) {
    uintptr_t address = entry >> 16;
    uint16_t node = (uint16_t)entry;
    struct block block;
    if (blocks_find(reach->blocks, address, &block) && block.start == address && put_off(reach, block, node))
        return;
    follow(reach, address, node);
    follow_beside(reach, address);
}

static void make_room(struct reach *reach) {
    if (reach->count > REACH_QUEUE / 2 && !reach->some_wait) {
        reach->some_wait = true;
        for (uint32_t left = reach->count; left; left--) {
            uint64_t entry = take_first(reach);
            push(reach, entry >> 16, (uint16_t)entry);
        }
    }
    while (reach->count > REACH_QUEUE / 2 && !reach->pages->late) {
        for (uint32_t i = 0; i < REACH_BATCH; i++)
            reach->batch[i] = take_last(reach);
        reach_sort(reach->batch, REACH_BATCH);
        for (uint32_t i = 0; i < REACH_BATCH && !reach->pages->late; i++) {
            follow_entry(reach, reach->batch[i]);
            while (reach->count > REACH_QUEUE - REACH_QUEUE / 8 && !reach->pages->late)
                follow_entry(reach, take_last(reach));   // these lead to many
        }
    }
}

static void follow_part(struct reach *reach, uint32_t part) {
    uint64_t *bits = reach->waiting[part];
    for (uint32_t at = 0; at < REACH_MARKS / 2; at++) {
        while (bits[at] && !is_put_off(reach, part, at / REACH_TOGETHER) && !reach->pages->late) {
            uint32_t bit = at * 64 + (uint32_t)__builtin_ctzll(bits[at]);
            bits[at] &= bits[at] - 1;
            reach->waiting_count[part]--;
            follow(reach, reach->starts[part] + bit * REACH_ALIGNED, reach->waits_as[part][at / REACH_TOGETHER]);
            make_room(reach);
        }
    }
}

// Follows what waits, and what begins to wait meanwhile: downwards and upwards in turn, since a list leads either way.
static void follow_waiting(struct reach *reach) {
    bool down = false;
    for (bool more = reach->some_wait; more && !reach->pages->late;) {
        uint32_t parts = reach->parts;
        for (uint32_t part = 0; part < parts; part++)
            reach->order[part] = (uint64_t)reach->starts[part] << 16 | part;
        reach_sort(reach->order, parts);
        more = false;
        down = !down;
        for (uint32_t i = 0; i < parts; i++) {
            uint32_t part = (uint16_t)reach->order[down ? parts - 1 - i : i];
            for (; reach->waiting_count[part] && !reach->pages->late; more = true)
                follow_part(reach, part);
        }
    }
    reach->some_wait = false;
}

void reach_run(struct reach *reach) {
    do {
        uint32_t here = REACH_QUEUE - reach->head, now = reach->count < here ? reach->count : here;
        reach_sort(reach->queue + reach->head, now);
        for (; now && reach->count && !reach->pages->late; now--) {
            follow_entry(reach, take_first(reach));
            make_room(reach);
        }
        follow_waiting(reach);
    } while (reach->count && !reach->pages->late);
}

void reach_run_all(struct reach *reach) {
    reach->none_is_dull = reach->some_wait = true;
    for (uint32_t part = 0; part < reach->parts; part++) {
        for (uint32_t at = 0; at < REACH_MARKS / 2; at++)
            if (is_put_off(reach, part, at / REACH_TOGETHER))
                reach->waiting_count[part] += (uint32_t)__builtin_popcountll(reach->waiting[part][at]);
        memset(reach->put_off[part], 0, sizeof reach->put_off[part]);
    }
    reach_run(reach);
}
