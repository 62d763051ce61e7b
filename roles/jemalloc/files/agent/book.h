// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The book of sampled objects: which live, and by stack how many were born and at what ages they died.
#ifndef OFFHEAP_BOOK_H
#define OFFHEAP_BOOK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOOK_BUCKETS 32            // of ages: below 64 ms, below 128 ms, and so on
#define BOOK_STACKS (1u << 14)
#define BOOK_PLACES (2 * BOOK_STACKS)   // where a stack is found by its hash
#define BOOK_FILTER (1u << 20)     // bytes

struct object {
    uintptr_t address;             // 0: the slot is free
    uint64_t born : 40, stack : 24;   // milliseconds since the book began
    uint64_t size;
};

struct stack {
    uint64_t hash, births, bytes, deaths;
    uint32_t first, length;        // in `frames`
    uint64_t died[BOOK_BUCKETS], ages[BOOK_BUCKETS];   // how many, and the sum of their ages in milliseconds
};

struct book {
    atomic_uint lock;              // 0: nobody has it
    atomic_bool open;
    int64_t began;                 // monotonic milliseconds
    uint64_t lost, lost_bytes;     // births for which there was no room
    uint32_t slots, living, stacks, frames_used;
    uint32_t places[BOOK_PLACES];  // a stack's number plus one
};

struct death {                     // what it takes to undo one
    struct object object;
    uint64_t age;
    int64_t began;                 // that of the book
};

// A copy of the book, in memory of its own; for each stack where its living begin in `order`.
struct book_copy {
    const struct book *book;
    const struct stack *stacks;
    const uintptr_t *frames;
    const struct object *objects;
    uint32_t *starts, *order;
    void *memory;
    size_t size;
};

// Reserves its memory, once; `filtered`: with the filter. False where the kernel cannot wipe it in forked children.
bool book_reserve(bool filtered);
void book_begin(void);             // a new one, from now on
void book_close(void);             // nothing is in it
bool book_is_open(void);           // false before the first, and in a forked child
int64_t book_age(void);            // milliseconds
void book_born(const void *pointer, size_t size, void **frames, unsigned length, size_t usable);   // as jemalloc calls it
void book_died(const void *pointer, size_t usable);   // the same
bool book_end(const void *pointer, struct death *death);   // a death, if it is in the book
void book_undo(const struct death *death);   // it lives on
bool book_forget(const void *pointer);       // as if it had never been born
bool book_copy(struct book_copy *copy, int64_t most);   // of one moment, sorted, in so many bytes; false with errno. The
                                                        // caller frees it
void book_free(struct book_copy *copy);
bool book_lives(const struct object *object);   // one of a copy, still
void book_memory(const void **start, size_t *size);   // where it lies

// How many that live share a byte, counted to 255: whoever frees anything sees without a lock what is not in the book.
extern uint8_t *book_filter __attribute__((visibility("hidden")));

// A byte for 64 of memory, a page for 256 KiB: what lies together is looked up together. With each block's byte anywhere
// in the MiB, as good as each look was a miss of the processor's cache.
#define BOOK_FILTER_AT(address) \
    (((uint64_t)(address) >> 18) * UINT64_C(0x9e3779b97f4a7c15) >> 44 ^ ((uint64_t)(address) >> 6 & 4095))

static inline bool book_may_have(const void *pointer) {
    return __atomic_load_n(&book_filter[BOOK_FILTER_AT((uintptr_t)pointer)], __ATOMIC_RELAXED) != 0;
}

#endif
