// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// /proc/self/mem and /proc/self/pagemap (proc(5)). A page that is not there holds nothing, and stays away: asking for it
// would make the process grow. One in swap stays there and is counted. Reading is slowed down to RATE, so that a service
// keeps its share of the memory bus; and where we have inherited the service's real-time priority, so that it keeps half of
// the processor.
#define _GNU_SOURCE
#include "pages.h"

#include "clock.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#define RATE (1 << 20)           // bytes a millisecond
#define FRESH 100                // ms
#define PATIENCE 5               // times the processor time, where others want the processor, too
#define PRESENT (UINT64_C(1) << 63)
#define SWAPPED (UINT64_C(1) << 62)
#define GUARD (UINT64_C(1) << 58)   // MADV_GUARD_INSTALL, of which glibc makes the guards of stacks: it holds nothing

static int64_t processor_time(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return clock_milliseconds(time);
}

bool pages_open(struct pages *pages, int64_t milliseconds) {
    pages->map.fd = -1;
    pages->page = (size_t)sysconf(_SC_PAGESIZE);
    pages->began = pages->now = clock_monotonic();
    pages->wall = PATIENCE * milliseconds;
    pages->used = processor_time();
    pages->processor = pages->used + milliseconds;
    int64_t policy = owned_stat("/proc/thread-self/stat", 41);
    pages->first = policy == SCHED_FIFO || policy == SCHED_RR;
    return owned_take(&pages->memory, open(owned_process("mem"), O_RDONLY | O_CLOEXEC)) &&
           owned_take(&pages->map, open(owned_process("pagemap"), O_RDONLY | O_CLOEXEC));
}

void pages_close(struct pages *pages) {
    owned_close(&pages->memory);
    owned_close(&pages->map);
}

static const struct pages_chunk *chunk_of(struct pages *pages, uintptr_t page) {
    uint64_t states[PAGES_CHUNK];
    uintptr_t number = page / PAGES_CHUNK;
    struct pages_chunk *chunk = &pages->chunks[number % PAGES_CHUNKS];
    if (chunk->number == number + 1)
        return chunk;
    *chunk = (struct pages_chunk){.number = number + 1};
    ssize_t length = -1;
    if (owned_still(&pages->map))
        length = pread(pages->map.fd, states, sizeof states, (off_t)(number * sizeof states));
    for (size_t i = 0; i < PAGES_CHUNK && (ssize_t)((i + 1) * sizeof *states) <= length; i++) {
        chunk->present[i / 64] |= (uint64_t)!!(states[i] & PRESENT) << i % 64;
        chunk->swapped[i / 64] |= (uint64_t)((states[i] & (SWAPPED | GUARD)) == SWAPPED) << i % 64;
    }
    return chunk;
}

static bool has(const uint64_t *bits, uintptr_t page) {
    return bits[page % PAGES_CHUNK / 64] >> page % 64 & 1;
}

// Whether there is time; waits if it was too fast.
static bool in_time(struct pages *pages) {
    if (pages->late || pages->turns++ % 64)
        return !pages->late;
    int64_t passed = (pages->now = clock_monotonic()) - pages->began, due = (int64_t)(pages->read / RATE);
    int64_t used = processor_time();
    if (pages->first && due < 2 * (used - pages->used))
        due = 2 * (used - pages->used);
    if (due > passed + 1)
        poll(NULL, 0, (int)(due - passed));   // sleeping would be one more system call for filters to list
    pages->late = passed >= pages->wall || used >= pages->processor;
    return !pages->late;
}

uintptr_t pages_next_chunk(struct pages *pages, uintptr_t at, bool *any) {
    *any = false;
    if (in_time(pages)) {
        const struct pages_chunk *chunk = chunk_of(pages, at / pages->page);
        for (size_t i = 0; i < PAGES_CHUNK / 64; i++)
            *any |= chunk->present[i] || chunk->swapped[i];
    }
    return (at / pages->page / PAGES_CHUNK + 1) * PAGES_CHUNK * pages->page;
}

uintptr_t pages_run(struct pages *pages, uintptr_t at, uintptr_t low) {
    uintptr_t page = at / pages->page, start = at + 1;
    for (; start > low && page && in_time(pages); start = page-- * pages->page) {
        const struct pages_chunk *chunk = chunk_of(pages, page);
        if (!has(chunk->present, page) && !has(chunk->swapped, page))
            break;
    }
    return start > low ? start : low;
}

static bool is_there_now(const struct pages *pages, uintptr_t at) {
    uint64_t state = 0;
    return owned_still(&pages->map) &&
           pread(pages->map.fd, &state, sizeof state, (off_t)(at / pages->page * sizeof state)) == sizeof state && state & PRESENT;
}

// What was unmapped meanwhile is not missed. What is there, and was at each try, the kernel shows to nobody (memfd_secret(2)).
static bool peek(struct pages *pages, uintptr_t at, void *to, size_t size) {
    bool there = true;
    for (int tried = 0; there && tried < 3; tried++) {
        ssize_t length = owned_still(&pages->memory) ? pread(pages->memory.fd, to, size, (off_t)at) : -1;
        if (length == (ssize_t)size) {
            pages->read += size;
            return true;
        }
        there = is_there_now(pages, at + (length > 0 ? (size_t)length : 0));
    }
    memset(to, 0, size);
    pages->failed += there ? size : 0;
    return false;
}

static uint32_t place_of(uintptr_t line) {
    return (uint32_t)(line * UINT64_C(0x9e3779b97f4a7c15) >> 32) % PAGES_LINES;
}

static bool is_known(const struct pages *pages, uintptr_t part) {
    uintptr_t line = part / PAGES_PARTS;
    uint32_t at = place_of(line);
    return pages->line[at] == line + 1 && pages->known[at] >> part % PAGES_PARTS & 1;
}

static bool is_present(struct pages *pages, uintptr_t part) {
    uintptr_t page = part * PAGES_PART / pages->page;
    return has(chunk_of(pages, page)->present, page);
}

// Reads the parts [part, end), and on to the line's end if the part before is known: then somebody goes through all.
static bool read_parts(struct pages *pages, uintptr_t part, uintptr_t end) {
    uintptr_t line = part / PAGES_PARTS, first = line * PAGES_PARTS;
    uint32_t at = place_of(line);
    for (uintptr_t after = is_known(pages, part - 1) ? first + PAGES_PARTS : end; end < after && is_present(pages, end); end++)
        ;
    char *to = (char *)pages->lines[at] + (part - first) * PAGES_PART;
    if (!peek(pages, part * PAGES_PART, to, (end - part) * PAGES_PART))
        return false;
    for (; part < end; part++)
        pages->known[at] |= (uint8_t)(1u << (part - first));
    return true;
}

// A small block in one line, as it was a moment ago. False if it is not, or is not there as a whole.
static bool from_line(struct pages *pages, uintptr_t at, size_t size) {
    uintptr_t line = at / PAGES_LINE, first = at / PAGES_PART, end = (at + size - 1) / PAGES_PART + 1;
    uint32_t place = place_of(line);
    if (size > PAGES_PART / 4 || line != (at + size - 1) / PAGES_LINE)
        return false;
    for (uintptr_t part = first; part < end; part++)
        if (!is_present(pages, part))
            return false;
    if (pages->line[place] != line + 1 || pages->now - pages->line_read[place] > FRESH) {
        pages->line[place] = line + 1;
        pages->line_read[place] = pages->now;
        pages->known[place] = 0;
    }
    for (uintptr_t part = first; part < end; part++)
        if (!is_known(pages, part) && !read_parts(pages, part, end))
            return false;
    memcpy(pages->words, pages->lines[place] + at % PAGES_LINE / sizeof(uint64_t), size);
    return true;
}

size_t pages_words(struct pages *pages, uintptr_t at, size_t size) {
    bool seen = false;
    size = (size < PAGES_PIECE ? size : PAGES_PIECE) & ~(sizeof(uint64_t) - 1);
    if (!size || !in_time(pages))
        return 0;
    if (from_line(pages, at, size))
        return size / sizeof(uint64_t);
    for (size_t done = 0, length; done < size; done += length) {   // run by run of pages that are there, or are not
        uintptr_t page = (at + done) / pages->page;
        const struct pages_chunk *chunk = chunk_of(pages, page);
        bool present = has(chunk->present, page), swapped = has(chunk->swapped, page);
        do
            length = ++page * pages->page - (at + done);
        while (done + length < size && page % PAGES_CHUNK && has(chunk->present, page) == present &&
               has(chunk->swapped, page) == swapped);
        length = done + length < size ? length : size - done;
        char *to = (char *)pages->words + done;
        if (present && !seen)
            memset(pages->words, 0, done);
        if (present)
            seen |= peek(pages, at + done, to, length);
        else if (seen)   // much is reserved, and never touched: nothing is done for that
            memset(to, 0, length);
        pages->swapped += swapped ? length : 0;
    }
    return seen ? size / sizeof(uint64_t) : 0;
}
