// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The book. Each birth and each death of a sampled object is told to it, in any thread and inside malloc.
// So it calls neither malloc nor the kernel: it has one reserved region of memory, of which only what is used is ever
// touched, and a lock that is held for less than a microsecond at a time, a few times for each sample interval; for
// some milliseconds while a table doubles, and while a dump copies it all.
//
// A forked child inherits neither the book nor the lock, whoever held that: the kernel wipes the region (Linux 4.14).
// The book of a process that was forked is all zeros, so it is closed, and whoever tells it anything finds that at once.
// Where the kernel cannot do it, there is no book.
//
// Objects are found by their address in a table with linear probing, without gaps in what one probe walks over: an end
// moves those behind it forward. The table doubles when it is three quarters full; each size has its own part of the
// reserved memory. Under the lock it is only copied.
#define _GNU_SOURCE
#include "book.h"

#include "clock.h"
#include "probes.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEAST_SLOTS (1u << 12)
#define MOST_SLOTS (1u << 18)    // of which three quarters are used
#define FRAMES (1u << 19)        // of all stacks together
#define FIRST_AGE 6              // 2^6 ms
#define SPARE (1u << 16)         // of a copy, for what comes before it is made
enum { LOCKED = 1, AWAITED };    // by threads that sleep
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18       // Linux 4.14; libc's headers may be older
#endif

// The reserved memory. What is behind `book` is used from its beginning on; a table of n slots lies at objects + n.
static struct region {
    struct book *book;
    struct stack *stacks;
    uintptr_t *frames;
    struct object *objects;
    size_t size;
} region;

uint8_t *book_filter;
static __thread bool inside;       // a signal handler that allocates must not wait for its own thread

static size_t rounded(size_t size) {
    return (size + 65535) & ~(size_t)65535;
}

bool book_reserve(bool filtered) {
    if (region.book) {
        book_filter = filtered ? (uint8_t *)region.book + region.size - BOOK_FILTER : NULL;
        return true;
    }
    size_t book = rounded(sizeof *region.book), stacks = rounded(BOOK_STACKS * sizeof *region.stacks);
    size_t frames = rounded(FRAMES * sizeof *region.frames), objects = rounded(2 * MOST_SLOTS * sizeof *region.objects);
    size_t size = book + stacks + frames + objects + BOOK_FILTER;
    char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return false;
    if (madvise(start, size, MADV_WIPEONFORK) < 0) {
        munmap(start, size);
        return false;
    }
    madvise(start, size, MADV_NOHUGEPAGE);   // it would be resident as a whole
    region = (struct region){(struct book *)start, (struct stack *)(start + book), (uintptr_t *)(start + book + stacks),
                             (struct object *)(start + book + stacks + frames), size};
    return book_reserve(filtered);
}

static void wait_for_lock(atomic_uint *lock) {
    int before = errno;
    while (atomic_exchange_explicit(lock, AWAITED, memory_order_acquire))
        syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, AWAITED, NULL, NULL, 0);
    errno = before;
}

static void wake_one(atomic_uint *lock) {
    int before = errno;
    syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    errno = before;
}

// As Drepper's "Futexes Are Tricky" has it (mutex, take 2). A pthread_mutex_t takes sixty instructions more for a turn,
// a sixth of what a birth takes.
static void lock(struct book *book) {
    unsigned expected = 0;
    if (!atomic_compare_exchange_strong_explicit(&book->lock, &expected, LOCKED, memory_order_acquire, memory_order_relaxed))
        wait_for_lock(&book->lock);
}

static void unlock(struct book *book) {
    if (atomic_exchange_explicit(&book->lock, 0, memory_order_release) == AWAITED)
        wake_one(&book->lock);
}

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static uint64_t mixed(uint64_t value) {
    value *= GOLDEN;
    return value ^ value >> 32;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return clock_milliseconds(time);
}

// The number of a stack, which is made if it is new; BOOK_STACKS if there is no room for it.
static uint32_t number_of(struct book *book, void **frames, uint32_t length) {
    uint64_t hash = length;
    for (uint32_t i = 0; i < length; i++)
        hash = (hash ^ (uintptr_t)frames[i]) * GOLDEN;
    hash ^= hash >> 32;
    uint32_t place = (uint32_t)hash % BOOK_PLACES;
    for (; book->places[place]; place = (place + 1) % BOOK_PLACES) {
        const struct stack *stack = &region.stacks[book->places[place] - 1];
        if (stack->hash == hash && stack->length == length &&
            !memcmp(&region.frames[stack->first], frames, length * sizeof *frames))
            return book->places[place] - 1;
    }
    if (book->stacks == BOOK_STACKS || book->frames_used + length > FRAMES)
        return BOOK_STACKS;
    struct stack *stack = &region.stacks[book->stacks];
    stack->hash = hash;
    stack->first = book->frames_used;
    stack->length = length;
    memcpy(&region.frames[stack->first], frames, length * sizeof *frames);
    book->frames_used += length;
    book->places[place] = ++book->stacks;
    return book->stacks - 1;
}

static struct object *free_slot(struct object *table, uint32_t slots, uintptr_t address) {
    uint32_t at = (uint32_t)mixed(address) & (slots - 1);
    while (table[at].address)
        at = (at + 1) & (slots - 1);
    return &table[at];
}

// One that has reached 255 stays there, until the next book.
static void count_in_filter(uintptr_t address, int by) {
    if (!book_filter)
        return;
    uint8_t *at = book_filter + BOOK_FILTER_AT(address);
    if (*at != UINT8_MAX)
        __atomic_store_n(at, (uint8_t)(*at + by), __ATOMIC_RELAXED);
}

// False if the table cannot grow. The table that it leaves is never used again.
static bool grow(struct book *book) {
    if (book->slots == MOST_SLOTS)
        return false;
    const struct object *before = region.objects + book->slots;
    uint32_t count = book->slots;
    book->slots *= 2;
    for (uint32_t at = 0; at < count; at++)
        if (before[at].address)
            *free_slot(region.objects + book->slots, book->slots, before[at].address) = before[at];
    return true;
}

static bool has_slot(struct book *book) {
    return book->living < book->slots / 4 * 3 || grow(book);
}

// Whether the book is open, and this thread not in it already; locked then.
static bool enter(struct book *book) {
    if (!book || !atomic_load_explicit(&book->open, memory_order_acquire) || inside)
        return false;
    inside = true;
    lock(book);
    return true;
}

static void leave(struct book *book) {
    unlock(book);
    inside = false;
}

// The slot of one more object, which the caller fills.
static struct object *add(struct book *book, uintptr_t address) {
    book->living++;
    count_in_filter(address, 1);
    return free_slot(region.objects + book->slots, book->slots, address);
}

void book_born(const void *pointer, size_t size, void **frames, unsigned length, size_t usable) {
    struct book *book = region.book;
    (void)size;
    if (!enter(book))
        return;
    uint32_t stack = has_slot(book) ? number_of(book, frames, length) : BOOK_STACKS;
    bool lost = stack == BOOK_STACKS;
    if (lost) {
        book->lost++;
        book->lost_bytes += usable;
    } else {
        int64_t age = now() - book->began;
        *add(book, (uintptr_t)pointer) = (struct object){(uintptr_t)pointer, age > 0 ? (uint64_t)age : 0, stack, usable};
        region.stacks[stack].births++;
        region.stacks[stack].bytes += usable;
    }
    leave(book);
    if (!lost)
        probes_born(pointer, usable);
}

static void take_out(struct object *table, uint32_t slots, uint32_t hole) {
    for (uint32_t at = (hole + 1) & (slots - 1); table[at].address; at = (at + 1) & (slots - 1)) {
        uint32_t home = (uint32_t)mixed(table[at].address) & (slots - 1);
        if (((at - home) & (slots - 1)) >= ((at - hole) & (slots - 1))) {
            table[hole] = table[at];
            hole = at;
        }
    }
    table[hole].address = 0;
}

// The slot of the object; a free one: it was born before the book began, or is lost.
static uint32_t find(const struct book *book, uintptr_t address) {
    const struct object *table = region.objects + book->slots;
    uint32_t at = (uint32_t)mixed(address) & (book->slots - 1);
    while (table[at].address && table[at].address != address)
        at = (at + 1) & (book->slots - 1);
    return at;
}

// Takes an object out, if it is in the book.
static inline bool remove_object(struct book *book, const void *pointer, struct object *object) {
    struct object *table = region.objects + book->slots;
    uint32_t at = find(book, (uintptr_t)pointer);
    if (!table[at].address)
        return false;
    *object = table[at];
    take_out(table, book->slots, at);
    book->living--;
    count_in_filter(object->address, -1);
    return true;
}

// `by` is 1, or -1 to undo it.
static inline void count_death(const struct death *death, int by) {
    struct stack *stack = &region.stacks[death->object.stack];
    uint64_t age = death->age;
    unsigned bucket = age >> FIRST_AGE ? 64 - FIRST_AGE - (unsigned)__builtin_clzll(age) : 0;
    bucket = bucket < BOOK_BUCKETS ? bucket : BOOK_BUCKETS - 1;
    stack->deaths += (uint64_t)by;
    stack->died[bucket] += (uint64_t)by;
    stack->ages[bucket] += by > 0 ? age : -age;
}

bool book_end(const void *pointer, struct death *death) {
    struct book *book = region.book;
    if (!enter(book))
        return false;
    bool found = remove_object(book, pointer, &death->object);
    if (found) {
        int64_t age = now() - book->began - (int64_t)death->object.born;
        death->age = age > 0 ? (uint64_t)age : 0;
        death->began = book->began;
        count_death(death, 1);
    }
    leave(book);
    if (found)
        probes_died(pointer);
    return found;
}

void book_died(const void *pointer, size_t usable) {
    struct death death;
    (void)usable;
    book_end(pointer, &death);
}

static void unborn(const struct object *object) {
    region.stacks[object->stack].births--;
    region.stacks[object->stack].bytes -= object->size;
}

void book_undo(const struct death *death) {
    struct book *book = region.book;
    bool back = false;
    if (!enter(book))
        return;
    if (death->began == book->began) {   // else another book began meanwhile
        count_death(death, -1);
        back = has_slot(book);
        if (back) {
            *add(book, death->object.address) = death->object;
        } else {
            unborn(&death->object);
            book->lost++;
            book->lost_bytes += death->object.size;
        }
    }
    leave(book);
    if (back)
        probes_born((const void *)death->object.address, death->object.size);
}

bool book_forget(const void *pointer) {
    struct book *book = region.book;
    struct object object;
    if (!enter(book))
        return false;
    bool found = remove_object(book, pointer, &object);
    if (found)
        unborn(&object);
    leave(book);
    if (found)
        probes_died(pointer);
    return found;
}

bool book_is_open(void) {
    return region.book && atomic_load_explicit(&region.book->open, memory_order_acquire);
}

int64_t book_age(void) {
    return now() - region.book->began;
}

// All but the lock, as if it had just been reserved. What a process has locked (mlockall) the kernel does not take back.
static void clear(struct book *book) {
    char *rest = (char *)region.stacks;
    size_t size = region.size - (size_t)(rest - (char *)book);
    if (madvise(rest, size, MADV_DONTNEED) < 0)
        memset(rest, 0, size);
    memset(book->places, 0, sizeof book->places);
    book->lost = book->lost_bytes = 0;
    book->living = book->stacks = book->frames_used = 0;
    book->slots = LEAST_SLOTS;
    book->began = now();
}

static void set(bool open) {
    struct book *book = region.book;
    inside = true;
    lock(book);
    clear(book);
    atomic_store_explicit(&book->open, open, memory_order_release);
    leave(book);
}

void book_begin(void) {
    set(true);
}

void book_close(void) {
    if (book_is_open())
        set(false);
}

// Sorts the living by stack. False if those of a stack are not its births less its deaths.
static bool sort(const struct book_copy *copy) {
    const struct book *book = copy->book;
    uint32_t *ends = copy->starts + 1, sum = 0;   // at first where a stack's begin
    for (uint32_t number = 0; number < book->stacks; number++) {
        ends[number] = sum;
        sum += (uint32_t)(copy->stacks[number].births - copy->stacks[number].deaths);
    }
    for (uint32_t at = 0; sum == book->living && at < book->slots; at++) {
        if (copy->objects[at].address) {
            uint32_t *end = &ends[copy->objects[at].stack];
            if (*end == sum)
                return false;
            copy->order[(*end)++] = at;
        }
    }
    bool right = sum == book->living;
    copy->starts[0] = sum = 0;
    for (uint32_t number = 0; number < book->stacks; number++) {
        sum += (uint32_t)(copy->stacks[number].births - copy->stacks[number].deaths);
        right &= ends[number] == sum;
    }
    return right;
}

struct sizes {
    size_t stacks, frames, objects, all;
};

static struct sizes sizes_of(const struct book *book) {
    struct sizes sizes = {
        .stacks = book->stacks * sizeof *region.stacks,
        .frames = book->frames_used * sizeof *region.frames,
        .objects = book->slots * sizeof *region.objects,
    };
    size_t numbers = (book->stacks + 1 + book->living) * sizeof(uint32_t);
    sizes.all = rounded(sizeof *book) + sizes.stacks + sizes.frames + sizes.objects + numbers;
    return sizes;
}

// False if the book has grown beyond the copy's memory.
static bool copied(const struct book *book, struct book_copy *copy) {
    struct sizes sizes = sizes_of(book);
    if (sizes.all > copy->size)
        return false;
    char *at = copy->memory;
    const size_t locked = offsetof(struct book, began);   // what is before it others may write now
    memcpy(at + locked, &book->began, sizeof *book - locked);
    copy->book = (struct book *)at;
    copy->stacks = memcpy(at += rounded(sizeof *book), region.stacks, sizes.stacks);
    copy->frames = memcpy(at += sizes.stacks, region.frames, sizes.frames);
    copy->objects = memcpy(at += sizes.frames, region.objects + book->slots, sizes.objects);
    copy->starts = (uint32_t *)(at += sizes.objects);
    copy->order = copy->starts + book->stacks + 1;
    return true;
}

// Under the lock only what must be of one moment: some megabytes at most. Their memory is there before: to touch it the
// first time takes longer than to copy, and near a limit the kernel has whoever does so wait.
bool book_copy(struct book_copy *copy, int64_t most) {
    struct book *book = region.book;
    bool done = false;
    inside = true;
    while (!done) {
        lock(book);
        copy->size = sizes_of(book).all;
        unlock(book);
        copy->size += copy->size / 8 + SPARE;
        if ((int64_t)copy->size > most) {
            errno = ENOMEM;
            break;
        }
        copy->memory = mmap(NULL, copy->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (copy->memory == MAP_FAILED)
            break;
        lock(book);
        done = copied(book, copy);
        unlock(book);
        if (!done)
            book_free(copy);
    }
    inside = false;
    if (done && !sort(copy)) {
        book_free(copy);
        errno = EPROTO;   // "Protocol error": never seen, and no reason to write what is wrong
        done = false;
    }
    return done;
}

void book_free(struct book_copy *copy) {
    munmap(copy->memory, copy->size);
}

bool book_lives(const struct object *object) {
    struct book *book = region.book;
    if (!enter(book))
        return false;
    const struct object *found = region.objects + book->slots + find(book, object->address);
    bool lives = found->address && found->born == object->born && found->stack == object->stack && found->size == object->size;
    leave(book);
    return lives;
}

void book_memory(const void **start, size_t *size) {
    *start = region.book;
    *size = region.size;
}
