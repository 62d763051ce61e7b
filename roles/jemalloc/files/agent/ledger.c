// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The ledger: when a book begins, and how it is written, as lives and as the dump of a process without jemalloc.
#define _GNU_SOURCE
#include "ledger.h"

#include "book.h"
#include "clock.h"
#include "descriptors.h"
#include "feeder.h"
#include "maps.h"
#include "mallctl.h"
#include "probes.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// A file that is written in pieces.
static struct output {
    const struct owned *file;
    bool failed;
    size_t length;
    char text[65536];
} output;   // the agent's thread alone writes

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

static void say_frames(struct output *output, const struct book_copy *copy, const struct stack *stack) {
    say(output, "@");
    for (uint32_t i = 0; i < stack->length; i++)
        say(output, " %#" PRIxPTR, copy->frames[stack->first + i]);
}

static void write_lives(struct output *output, const struct book_copy *copy, int64_t began, int64_t now_at, size_t interval) {
    const struct book *book = copy->book;
    say(output, "offheap_lives/1 %zu\n", interval);
    say(output, "%" PRId64 ".%03d %" PRId64 ".%03d\n", began / 1000, (int)(began % 1000), now_at / 1000,
        (int)(now_at % 1000));
    say(output, "%" PRIu64 " %" PRIu64 "\n", book->lost, book->lost_bytes);
    for (uint32_t number = 0; number < book->stacks; number++) {
        const struct stack *stack = &copy->stacks[number];
        say_frames(output, copy, stack);
        say(output, "\n%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", stack->births, stack->bytes, stack->deaths);
        const char *before = "";
        for (int bucket = 0; bucket < BOOK_BUCKETS; bucket++) {
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

bool ledger_begin(void) {
    size_t interval;
    if (feeder_interval(&interval))
        probes_interval(interval);
    if (!feeder_is_sampler() && !book_reserve(false))
        return false;
    if (feeder_is_sampler() || je_install_ledger(book_born, book_died))
        book_begin();
    return true;
}

bool ledger_write(const char *dump, int64_t memory) {
    struct book_copy copy;
    struct owned file;
    size_t interval = 0;
    char path[4096], partial[4096 + 8];
    if (!feeder_active() || !book_is_open())
        return true;   // what is born now would be missing
    feeder_interval(&interval);
    int64_t now_at = clock_now(), began = now_at - book_age();
    if (!book_copy(&copy, memory))
        return false;
    bool written = false;
    if (snprintf(path, sizeof path, "%s.lives", dump) < (int)sizeof path) {
        snprintf(partial, sizeof partial, "%s.part", path);
        unlink(partial);
        if (owned_take(&file, open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600))) {
            output = (struct output){.file = &file};
            write_lives(&output, &copy, began, now_at, interval);
            owned_close(&file);
            written = !output.failed && rename(partial, path) == 0;
            if (!written)
                unlink(partial);
        }
    }
    book_free(&copy);
    return written;
}

static uint64_t living_bytes(const struct book_copy *copy, uint32_t number) {
    uint64_t sum = 0;
    for (uint32_t at = copy->starts[number]; at < copy->starts[number + 1]; at++)
        sum += copy->objects[copy->order[at]].size;
    return sum;
}

// What lives and, in brackets, what was ever born.
static void say_counts(struct output *output, uint64_t objects, uint64_t bytes, uint64_t births, uint64_t born_bytes) {
    say(output, "\n  t*: %" PRIu64 ": %" PRIu64 " [%" PRIu64 ": %" PRIu64 "]", objects, bytes, births, born_bytes);
}

static void add_maps(struct output *output) {
    struct owned maps;
    ssize_t length;
    flush(output);
    if (!owned_take(&maps, maps_descriptor()))
        return;   // addresses without images
    while (owned_still(&maps) && (length = read(maps.fd, output->text, sizeof output->text)) > 0) {
        output->length = (size_t)length;
        flush(output);
    }
    owned_close(&maps);
}

bool ledger_write_maps(const struct owned *file) {
    output = (struct output){.file = file};
    add_maps(&output);
    return !output.failed;
}

// As jemalloc writes it: sampled, for the reader to unbias.
bool ledger_dump(const struct owned *file, int64_t memory) {
    struct book_copy copy;
    size_t interval = 0;
    uint64_t bytes = 0, births = 0, born_bytes = 0;
    feeder_interval(&interval);
    if (!book_copy(&copy, memory))
        return false;
    for (uint32_t number = 0; number < copy.book->stacks; number++) {
        bytes += living_bytes(&copy, number);
        births += copy.stacks[number].births;
        born_bytes += copy.stacks[number].bytes;
    }
    output = (struct output){.file = file};
    say(&output, "heap_v2/%zu", interval);
    say_counts(&output, copy.book->living, bytes, births, born_bytes);
    for (uint32_t number = 0; number < copy.book->stacks; number++) {
        const struct stack *stack = &copy.stacks[number];
        say(&output, "\n");
        say_frames(&output, &copy, stack);
        say_counts(&output, stack->births - stack->deaths, living_bytes(&copy, number), stack->births, stack->bytes);
    }
    say(&output, "\n\nMAPPED_LIBRARIES:\n");
    add_maps(&output);
    book_free(&copy);
    return !output.failed;
}
