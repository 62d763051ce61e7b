// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Each block that can be reached is read once, breadth first, so that the way to a sample is the shortest. A way is not kept
// as blocks but as their kind: the root, and sizes and types of what lies between. So few are told apart, however many
// blocks there are, and a list of any length is one step.
//
// What the queue holds is sorted by address, so that neighbours are read at once. While the queue is more than half full it
// is read from its end: depth first, which needs less room.
#include "reach.h"

#include <string.h>

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

// Where the marks of this address's mebibyte are; NULL if there is no room for them.
static uint64_t *marks_of(struct reach *reach, uintptr_t address) {
    uintptr_t number = address / REACH_CHUNK;
    uint32_t at = reach->last;
    if (reach->chunks[at] != number + 1) {
        at = (uint32_t)((number * UINT64_C(0x9e3779b97f4a7c15)) >> 32) % REACH_CHUNKS;
        while (reach->chunks[at] && reach->chunks[at] != number + 1)
            at = (at + 1) % REACH_CHUNKS;
        if (!reach->chunks[at]) {
            if (reach->marks_used == REACH_MARKED)
                return NULL;
            reach->chunks[at] = number + 1;
            reach->marks_of[at] = reach->marks_used++;
        }
        reach->last = at;
    }
    return reach->marks[reach->marks_of[at]];
}

// Whether it is marked now, and was not before.
static bool mark(struct reach *reach, uintptr_t start) {
    uint64_t *marks = marks_of(reach, start);
    reach->full |= !marks;
    if (!marks)
        return false;
    uint32_t bit = start % REACH_CHUNK / 8;
    if (marks[bit / 64] >> bit % 64 & 1)
        return false;
    marks[bit / 64] |= UINT64_C(1) << bit % 64;
    return true;
}

static void push(struct reach *reach, uintptr_t address, uint16_t node) {
    if (reach->count == REACH_QUEUE)
        reach->full = true;
    else
        reach->queue[(reach->head + reach->count++) % REACH_QUEUE] = (uint64_t)address << 16 | node;
}

bool reach_is_new(struct reach *reach, uint64_t word, size_t *size) {
    struct block block;
    if (word - reach->blocks->low >= reach->blocks->high - reach->blocks->low ||
        !blocks_find(reach->blocks, word, &block))
        return false;
    const uint64_t *marks = marks_of(reach, block.start);
    uint32_t bit = block.start % REACH_CHUNK / 8;
    reach->full |= !marks;
    *size = block.size;
    return marks && !(marks[bit / 64] >> bit % 64 & 1);
}

void reach_point(struct reach *reach, uint64_t word, uint16_t node) {
    struct block block;
    if (word - reach->blocks->low >= reach->blocks->high - reach->blocks->low ||
        !blocks_find(reach->blocks, word, &block) || !mark(reach, block.start))
        return;
    struct sample *sample = blocks_may_be_sample(reach->blocks, block.start) ? blocks_sample(reach->blocks, block.start) : NULL;
    if (sample && sample->block.start == block.start)
        sample->holder = node;
    reach->marked++;
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
    size_t count = pages_words(reach->pages, address, size);
    node = step(reach, node, block, count ? reach->pages->words[0] : 0);
    point(reach, count, node);
    for (size_t at = PAGES_PIECE; at < size; at += PAGES_PIECE) {
        if (blocks_find(reach->blocks, address + at, &same) && same.start == address)
            push(reach, address + at, node);
        else
            point(reach, pages_words(reach->pages, address + at, size - at), node);   // it is new: nobody knows its inner pages
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

void reach_run(struct reach *reach) {
    while (reach->count && !reach->pages->late) {
        uint32_t here = REACH_QUEUE - reach->head, now = reach->count < here ? reach->count : here;
        reach_sort(reach->queue + reach->head, now);
        for (; now && reach->count && !reach->pages->late; now--) {
            while (reach->count > REACH_QUEUE / 2 && !reach->pages->late) {
                uint64_t last = reach->queue[(reach->head + --reach->count) % REACH_QUEUE];
                follow(reach, last >> 16, (uint16_t)last);
            }
            uint64_t entry = reach->queue[reach->head];
            reach->head = (reach->head + 1) % REACH_QUEUE;
            reach->count--;
            follow(reach, entry >> 16, (uint16_t)entry);
        }
    }
}
