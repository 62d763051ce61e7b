// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The ledger of sampled objects. jemalloc calls it at each birth and each death of one, in any thread and inside malloc.
// So it calls neither malloc nor the kernel: it has one reserved region of memory, of which only what is used is ever
// touched, and a lock that is held for less than a microsecond at a time, a few times for each sample interval.
//
// A forked child inherits neither the book nor the lock, whoever held that: the kernel wipes the region (Linux 4.14).
// The ledger of a process that was forked is all zeros, so it is closed, and jemalloc's calls find that at once. Where
// the kernel cannot do it, there is no ledger.
//
// Objects are found by their address in a table with linear probing, without gaps in what one probe walks over: an end
// moves those behind it forward. The table doubles when it is three quarters full; each size has its own part of the
// reserved memory. A dump copies the book under the lock, and writes the copy.
#define _GNU_SOURCE
#include "ledger.h"

#include "clock.h"
#include "descriptors.h"
#include "mallctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEAST_SLOTS (1u << 12)
#define MOST_SLOTS (1u << 18)    // of which three quarters are used
#define STACKS (1u << 14)
#define PLACES (2 * STACKS)      // where a stack is found by its hash
#define FRAMES (1u << 19)        // of all stacks together
#define BUCKETS 32               // of ages: below 64 ms, below 128 ms, and so on
#define FIRST_AGE 6              // 2^6 ms
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18       // Linux 4.14; libc's headers may be older
#endif

struct object {
    uintptr_t address;             // 0: the slot is free
    uint64_t born : 40, stack : 24;   // milliseconds since the book began
    uint64_t size;
};

struct stack {
    uint64_t hash, births, bytes, deaths;
    uint32_t first, length;        // in `frames`
    uint64_t died[BUCKETS], ages[BUCKETS];   // how many, and the sum of their ages in milliseconds
};

struct book {
    pthread_mutex_t lock;          // all zeros are an unlocked one
    atomic_bool open;
    int64_t began;                 // monotonic milliseconds
    uint64_t lost, lost_bytes;     // births for which there was no room
    uint32_t slots, living, stacks, frames_used;
    uint32_t places[PLACES];       // a stack's number plus one
};

// The reserved memory. What is behind `book` is used from its beginning on; a table of n slots lies at objects + n.
static struct region {
    struct book *book;
    struct stack *stacks;
    uintptr_t *frames;
    struct object *objects;
    size_t size;
} region;

static __thread bool inside;       // a signal handler that allocates must not wait for its own thread

static size_t rounded(size_t size) {
    return (size + 65535) & ~(size_t)65535;
}

static bool reserve(void) {
    size_t book = rounded(sizeof *region.book), stacks = rounded(STACKS * sizeof *region.stacks);
    size_t frames = rounded(FRAMES * sizeof *region.frames), objects = rounded(2 * MOST_SLOTS * sizeof *region.objects);
    size_t size = book + stacks + frames + objects;
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
    return true;
}

static uint64_t mixed(uint64_t value) {
    value *= UINT64_C(0x9e3779b97f4a7c15);
    return value ^ value >> 32;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return clock_milliseconds(time);
}

// The number of a stack, which is made if it is new; STACKS if there is no room for it.
static uint32_t number_of(struct book *book, void **frames, uint32_t length) {
    uint64_t hash = length;
    for (uint32_t i = 0; i < length; i++)
        hash = mixed(hash ^ (uintptr_t)frames[i]);
    uint32_t place = (uint32_t)hash % PLACES;
    for (; book->places[place]; place = (place + 1) % PLACES) {
        const struct stack *stack = &region.stacks[book->places[place] - 1];
        if (stack->hash == hash && stack->length == length &&
            !memcmp(&region.frames[stack->first], frames, length * sizeof *frames))
            return book->places[place] - 1;
    }
    if (book->stacks == STACKS || book->frames_used + length > FRAMES)
        return STACKS;
    struct stack *stack = &region.stacks[book->stacks];
    stack->hash = hash;
    stack->first = book->frames_used;
    stack->length = length;
    memcpy(&region.frames[stack->first], frames, length * sizeof *frames);
    book->frames_used += length;
    book->places[place] = ++book->stacks;
    return book->stacks - 1;
}

static void put(struct object *table, uint32_t slots, struct object object) {
    uint32_t at = (uint32_t)mixed(object.address) & (slots - 1);
    while (table[at].address)
        at = (at + 1) & (slots - 1);
    table[at] = object;
}

// False if the table is full and cannot grow. The table that it leaves is never used again.
static bool has_slot(struct book *book) {
    if (book->living < book->slots / 4 * 3)
        return true;
    if (book->slots == MOST_SLOTS)
        return false;
    const struct object *before = region.objects + book->slots;
    uint32_t count = book->slots;
    book->slots *= 2;
    for (uint32_t at = 0; at < count; at++)
        if (before[at].address)
            put(region.objects + book->slots, book->slots, before[at]);
    return true;
}

static void born(const void *pointer, size_t size, void **frames, unsigned length, size_t usable) {
    struct book *book = region.book;
    (void)size;
    if (!atomic_load_explicit(&book->open, memory_order_acquire) || inside)
        return;
    inside = true;
    pthread_mutex_lock(&book->lock);
    uint32_t stack = has_slot(book) ? number_of(book, frames, length) : STACKS;
    if (stack == STACKS) {
        book->lost++;
        book->lost_bytes += usable;
    } else {
        int64_t age = now() - book->began;
        put(region.objects + book->slots, book->slots,
            (struct object){(uintptr_t)pointer, age > 0 ? (uint64_t)age : 0, stack, usable});
        book->living++;
        region.stacks[stack].births++;
        region.stacks[stack].bytes += usable;
    }
    pthread_mutex_unlock(&book->lock);
    inside = false;
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

static void count_death(struct book *book, const struct object *object) {
    struct stack *stack = &region.stacks[object->stack];
    int64_t age = now() - book->began - (int64_t)object->born;
    uint64_t reached = age > 0 ? (uint64_t)age : 0;
    unsigned bucket = reached >> FIRST_AGE ? 64 - FIRST_AGE - (unsigned)__builtin_clzll(reached) : 0;
    bucket = bucket < BUCKETS ? bucket : BUCKETS - 1;
    stack->deaths++;
    stack->died[bucket]++;
    stack->ages[bucket] += reached;
}

static void died(const void *pointer, size_t usable) {
    struct book *book = region.book;
    (void)usable;
    if (!atomic_load_explicit(&book->open, memory_order_acquire) || inside)
        return;
    inside = true;
    pthread_mutex_lock(&book->lock);
    struct object *table = region.objects + book->slots;
    uint32_t at = (uint32_t)mixed((uintptr_t)pointer) & (book->slots - 1);
    while (table[at].address && table[at].address != (uintptr_t)pointer)
        at = (at + 1) & (book->slots - 1);
    if (table[at].address) {   // else it was born before the book began, or is lost
        count_death(book, &table[at]);
        take_out(table, book->slots, at);
        book->living--;
    }
    pthread_mutex_unlock(&book->lock);
    inside = false;
}

void ledger_begin(void) {
    if ((!region.book && !reserve()) || !je_install_ledger(born, died))
        return;
    struct book *book = region.book;
    inside = true;
    pthread_mutex_lock(&book->lock);
    // All but the lock, as if it had just been reserved.
    char *rest = (char *)region.stacks;
    madvise(rest, region.size - (size_t)(rest - (char *)book), MADV_DONTNEED);
    memset(book->places, 0, sizeof book->places);
    book->lost = book->lost_bytes = 0;
    book->living = book->stacks = book->frames_used = 0;
    book->slots = LEAST_SLOTS;
    book->began = now();
    atomic_store_explicit(&book->open, true, memory_order_release);
    pthread_mutex_unlock(&book->lock);
    inside = false;
}

// A file that is written in pieces.
struct output {
    const struct owned *file;
    bool failed;
    size_t length;
    char text[65536];
};

static void flush(struct output *output) {
    for (size_t done = 0; done < output->length && !output->failed;) {
        ssize_t written = owned_still(output->file) ? write(output->file->fd, output->text + done, output->length - done) : -1;
        output->failed = written <= 0;
        done += output->failed ? 0 : (size_t)written;
    }
    output->length = 0;
}

__attribute__((format(printf, 2, 3))) static void say(struct output *output, const char *format, ...) {
    va_list arguments;
    if (sizeof output->text - output->length < 128)
        flush(output);
    va_start(arguments, format);
    output->length += (size_t)vsnprintf(output->text + output->length, 128, format, arguments);
    va_end(arguments);
}

// A copy of the book, and for each stack where its objects begin in `order`.
struct copy {
    const struct book *book;
    const struct stack *stacks;
    const uintptr_t *frames;
    const struct object *objects;
    uint32_t *starts, *order;
};

static void write_copy(struct output *output, const struct copy *copy, int64_t began, int64_t now_at, size_t interval) {
    const struct book *book = copy->book;
    say(output, "offheap_lives/1 %zu\n", interval);
    say(output, "%" PRId64 ".%03d %" PRId64 ".%03d\n", began / 1000, (int)(began % 1000), now_at / 1000,
        (int)(now_at % 1000));
    say(output, "%" PRIu64 " %" PRIu64 "\n", book->lost, book->lost_bytes);
    for (uint32_t number = 0; number < book->stacks; number++) {
        const struct stack *stack = &copy->stacks[number];
        say(output, "@");
        for (uint32_t i = 0; i < stack->length; i++)
            say(output, " %#" PRIxPTR, copy->frames[stack->first + i]);
        say(output, "\n%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", stack->births, stack->bytes, stack->deaths);
        const char *before = "";
        for (int bucket = 0; bucket < BUCKETS; bucket++) {
            if (stack->died[bucket]) {
                say(output, "%s%d %" PRIu64 " %" PRIu64, before, bucket, stack->died[bucket], stack->ages[bucket]);
                before = " ";
            }
        }
        say(output, "\n");
        before = "";
        for (uint32_t at = copy->starts[number]; at < copy->starts[number + 1]; at++) {
            const struct object *object = &copy->objects[copy->order[at]];
            say(output, "%s%" PRIu64 " %" PRIu64, before, (uint64_t)object->born, object->size);
            before = " ";
        }
        say(output, "\n");
    }
    say(output, "end %u %u\n", book->stacks, book->living);
    flush(output);
}

// Sorts the living by stack. False if those of a stack are not its births less its deaths.
static bool sort(const struct copy *copy) {
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

// Under the lock, so that the book is of one moment: some megabytes at most.
static bool copy_book(struct copy *copy, void **memory, size_t *size) {
    struct book *book = region.book;
    bool done = false;
    inside = true;
    pthread_mutex_lock(&book->lock);
    size_t stacks = book->stacks * sizeof *region.stacks, frames = book->frames_used * sizeof *region.frames;
    size_t objects = book->slots * sizeof *region.objects, head = rounded(sizeof *book);
    size_t numbers = (book->stacks + 1 + book->living) * sizeof(uint32_t);
    *size = head + stacks + frames + objects + numbers;
    *memory = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*memory != MAP_FAILED) {
        char *at = *memory;
        copy->book = memcpy(at, book, sizeof *book);
        copy->stacks = memcpy(at += head, region.stacks, stacks);
        copy->frames = memcpy(at += stacks, region.frames, frames);
        copy->objects = memcpy(at += frames, region.objects + book->slots, objects);
        copy->starts = (uint32_t *)(at += objects);
        copy->order = copy->starts + book->stacks + 1;
        done = true;
    }
    pthread_mutex_unlock(&book->lock);
    inside = false;
    return done;
}

bool ledger_write(const char *dump) {
    static struct output output;
    struct copy copy;
    struct owned file;
    void *memory;
    size_t size, interval = 0;
    char path[4096], partial[4096 + 8];
    bool active = false;
    je_get_bool("prof.active", &active);
    if (!active || !region.book || !atomic_load_explicit(&region.book->open, memory_order_acquire))
        return true;   // what is born now would be missing
    if (je_get_size("prof.lg_sample", &interval))
        interval = (size_t)1 << interval;
    int64_t now_at = clock_now(), began = now_at - (now() - region.book->began);
    if (!copy_book(&copy, &memory, &size))
        return false;
    bool written = false;
    if (!sort(&copy)) {
        errno = EPROTO;   // "Protocol error": never seen, and no reason to write what is wrong
    } else if (snprintf(path, sizeof path, "%s.lives", dump) < (int)sizeof path) {
        snprintf(partial, sizeof partial, "%s.part", path);
        unlink(partial);
        if (owned_take(&file, open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600))) {
            output = (struct output){.file = &file};
            write_copy(&output, &copy, began, now_at, interval);
            owned_close(&file);
            written = !output.failed && rename(partial, path) == 0;
            if (!written)
                unlink(partial);
        }
    }
    munmap(memory, size);
    return written;
}
