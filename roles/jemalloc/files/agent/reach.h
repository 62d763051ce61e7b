// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What can be reached from roots, and by which way: a mark for each block, and for each sample the shortest way to it.
#ifndef OFFHEAP_REACH_H
#define OFFHEAP_REACH_H

#include "blocks.h"
#include "objects.h"
#include "pages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REACH_NODES 65536
#define REACH_EXACT (REACH_NODES / 4)   // while there are fewer, each global has its own
#define REACH_UNKNOWN 1           // the node of what there is no room to tell apart
#define REACH_DEPTH 24            // a longer way is folded
#define REACH_QUEUE (1u << 19)
#define REACH_BATCH (REACH_QUEUE / 4)   // of it are sorted at once to make room
#define REACH_CHUNKS 8192         // of a mebibyte, in which marks lie
#define REACH_PARTS 2304          // of them may have marks: 2.25 GiB of small blocks
#define REACH_CHUNK (1u << 20)
#define REACH_MARKS (REACH_CHUNK / 8 / 64)   // words; the smallest block has 8 bytes
#define REACH_ALIGNED 16u         // what waits begins at such addresses
#define REACH_TOGETHER 4          // words, of 4 KiB
#define REACH_SMALL 16384         // bytes of a block that is counted by its size
#define REACH_DULL 64             // blocks of one kind that have led to nothing new: the others can wait

enum reach_kind { REACH_GLOBAL, REACH_THREAD_LOCAL, REACH_STACK, REACH_THREAD, REACH_MAPPED, REACH_JAVA_HEAP, REACH_EPOLL, REACH_BLOCK };

// A step on a way: a root, or blocks of one size and type that the steps before lead to.
struct reach_node {
    uint32_t next;                // with the same hash
    uint16_t parent;              // 0 of a root
    uint8_t kind, depth;
    bool many;                    // blocks of this kind point to each other: a list, a tree
    int16_t file;                 // of a root or a type: a number in objects.h; -1: none
    uint64_t at;                  // of a global or a type: its address in the file. Of a thread-local: behind the start of
                                  // the file's thread-local memory. Of mapped memory: its number
    uint64_t size;                // of a block: usable bytes
    int tid;
};

struct reach {
    struct pages *pages;
    struct blocks *blocks;
    const struct objects *objects;
    bool full;                    // something did not fit: what was not reached may be held
    uint32_t nodes;
    uint64_t marked;              // blocks
    uint32_t marked_of[REACH_SMALL / 8];   // those of each size, in words
    uint32_t head, count;         // of the queue
    uint32_t places[REACH_NODES];
    struct reach_node node[REACH_NODES];
    uint64_t queue[REACH_QUEUE], batch[REACH_BATCH];   // an address and a node
    uint32_t last, parts;
    uintptr_t chunks[REACH_CHUNKS];   // number plus one
    uint32_t part_of[REACH_CHUNKS];
    uintptr_t starts[REACH_PARTS];    // where the part's chunk begins
    uint64_t order[REACH_PARTS];      // the same, and the part
    bool some_wait;               // to be followed, besides what is in the queue
    uint16_t waits_as[REACH_PARTS][REACH_MARKS / 2 / REACH_TOGETHER];   // the node of each page's blocks
    uint32_t waiting_count[REACH_PARTS];   // of those that are not put off
    bool none_is_dull;            // all is to be read
    uint8_t dull[REACH_NODES];    // by the node that leads there and the size, hashed: how many have led to nothing new
    uint64_t put_off[REACH_PARTS][REACH_MARKS / 2 / REACH_TOGETHER / 64];   // a bit for each page
    uint64_t waiting[REACH_PARTS][REACH_MARKS / 2];
    uint64_t seen[REACH_PARTS][REACH_MARKS];
};

void reach_begin(struct reach *reach);
uint16_t reach_node(struct reach *reach, struct reach_node node);   // its number; the same for the same
bool reach_is_new(struct reach *reach, uint64_t word, size_t *size);   // it leads to a block that nothing has led to
void reach_point(struct reach *reach, uint64_t word, uint16_t node);   // the node's memory has this word
void reach_leave_out(struct reach *reach, uintptr_t address);   // a block that is no holder
void reach_sort(uint64_t *entries, size_t count);
void reach_run(struct reach *reach);   // follows all pointers but those in blocks that are likely to have none
void reach_run_all(struct reach *reach);   // those, too

#endif
