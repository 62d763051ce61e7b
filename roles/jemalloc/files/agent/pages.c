// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// /proc/self/mem and /proc/self/pagemap (proc(5)). A page that is not there holds nothing, and stays away: asking for it
// would make the process grow. One in swap stays there and is counted. Reading is slowed down to RATE, so that a service
// keeps its share of the memory bus.
#define _GNU_SOURCE
#include "pages.h"

#include "clock.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define RATE (1 << 20)           // bytes a millisecond
#define FRESH 100                // ms
#define PATIENCE 5               // times the processor time, where others want the processor, too
#define PRESENT (UINT64_C(1) << 63)
#define SWAPPED (UINT64_C(1) << 62)

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
    pages->processor = processor_time() + milliseconds;
    return owned_take(&pages->memory, open("/proc/self/mem", O_RDONLY | O_CLOEXEC)) &&
           owned_take(&pages->map, open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
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
        chunk->swapped[i / 64] |= (uint64_t)!!(states[i] & SWAPPED) << i % 64;
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
    if (due > passed + 1)
        poll(NULL, 0, (int)(due - passed));   // sleeping would be one more system call for filters to list
    pages->late = passed >= pages->wall || processor_time() >= pages->processor;
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

static bool peek(struct pages *pages, uintptr_t at, void *to, size_t size) {
    ssize_t length = owned_still(&pages->memory) ? pread(pages->memory.fd, to, size, (off_t)at) : -1;
    if (length == (ssize_t)size) {
        pages->read += size;
        return true;
    }
    memset(to, 0, size);
    pages->failed += size;
    return false;
}

// What lies in a line, as it was a moment ago; NULL if it cannot be read.
static const uint64_t *line_of(struct pages *pages, uintptr_t number) {
    uint32_t at = (uint32_t)(number * UINT64_C(0x9e3779b97f4a7c15) >> 32) % PAGES_LINES;
    if (pages->line[at] != number + 1 || pages->now - pages->line_read[at] > FRESH) {
        pages->line[at] = 0;
        if (!peek(pages, number * PAGES_LINE, pages->lines[at], PAGES_LINE))
            return NULL;
        pages->line[at] = number + 1;
        pages->line_read[at] = pages->now;
    }
    return pages->lines[at];
}

// A small block in one line. False if it is not, or its page is not there.
static bool from_line(struct pages *pages, uintptr_t at, size_t size) {
    if (size > PAGES_LINE / 4 || at / PAGES_LINE != (at + size - 1) / PAGES_LINE ||
        !has(chunk_of(pages, at / pages->page)->present, at / pages->page))
        return false;
    const uint64_t *line = line_of(pages, at / PAGES_LINE);
    if (line)
        memcpy(pages->words, line + at % PAGES_LINE / sizeof *line, size);
    return line;
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
        if (present)
            seen |= peek(pages, at + done, to, length);
        else
            memset(to, 0, length);
        pages->swapped += swapped ? length : 0;
    }
    return seen ? size / sizeof(uint64_t) : 0;
}
