// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Only done when asked, and only relations are written: by which way blocks are held, in sizes, types and names of what the
// loader knows; never what lies in them. The process runs on meanwhile, so it is a race, in which a block that moved from
// one holder to another may be told as either, or as lost. What died meanwhile is not told.
#define _GNU_SOURCE
#include "holders.h"

#include "book.h"
#include "clock.h"
#include "descriptors.h"
#include "feeder.h"
#include "json.h"
#include "roots.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STACKS 48                // are told: those of which most lives
#define WAYS 4096                // of each; the elements of an array are as many
#define TYPES 4                  // the same
#define SIZES 16                 // the same
#define TYPED 200                // samples whose type is looked at, of each
#define YOUNG 1000               // ms; a pointer to what was just allocated may be in a register alone

// All that a look needs; most of it is never touched.
struct look {
    struct book_copy copy;
    struct pages pages;
    struct blocks blocks;
    struct objects objects;
    struct threads threads;
    struct reach reach;
    struct roots roots;
    uint32_t of_node[REACH_NODES];     // samples of one stack
    uint16_t told_as[REACH_NODES];     // a node's number in the file, plus one
    uint64_t ways[REACH_NODES];        // of one stack: samples, and the node
    uint32_t way_count;
    size_t living_blocks, interval;
    uint32_t chosen[STACKS];
    int chosen_count;
    bool is_chosen[BOOK_STACKS];
};

_Static_assert(sizeof(struct look) <= HOLDERS_MEMORY, "as the README says");

struct counts {
    uint64_t looked, lost, young, died;
};

static void *reserve(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, size, MADV_NOHUGEPAGE);   // it would be resident as a whole
    madvise(memory, size, MADV_DONTFORK);
    return memory;
}

static void list_samples(struct look *look) {
    struct blocks *blocks = &look->blocks;
    blocks->low = UINTPTR_MAX;
    for (uint32_t at = 0; at < look->copy.book->slots; at++) {
        const struct object *object = &look->copy.objects[at];
        if (!object->address)
            continue;
        blocks->samples[blocks->sample_count++] = (struct sample){{object->address, object->size}, at, 0};
        blocks->low = object->address < blocks->low ? object->address : blocks->low;
        blocks->high = object->address + object->size > blocks->high ? object->address + object->size : blocks->high;
    }
    blocks_sort(blocks);
}

static uint64_t living_bytes(const struct book_copy *copy, uint32_t stack) {
    uint64_t sum = 0;
    for (uint32_t at = copy->starts[stack]; at < copy->starts[stack + 1]; at++)
        sum += copy->objects[copy->order[at]].size;
    return sum;
}

static void choose(struct look *look) {
    while (look->chosen_count < STACKS) {
        uint64_t most = 0;
        uint32_t best = 0;
        for (uint32_t stack = 0; stack < look->copy.book->stacks; stack++) {
            uint64_t bytes = look->is_chosen[stack] ? 0 : living_bytes(&look->copy, stack);
            best = bytes > most ? stack : best;
            most = bytes > most ? bytes : most;
        }
        if (!most)
            return;
        look->is_chosen[best] = true;
        look->chosen[look->chosen_count++] = best;
    }
}

static const struct object *object_of(const struct look *look, const struct sample *sample) {
    return &look->copy.objects[sample->object];
}

// Whether a sample is told; counts it in any case.
static bool count(const struct look *look, const struct sample *sample, int64_t age, struct counts *counts) {
    const struct object *object = object_of(look, sample);
    bool died = !book_lives(object), young = !died && (int64_t)object->born + YOUNG > age;
    counts->died += died;
    counts->young += young;
    if (died || young)
        return false;
    counts->looked++;
    counts->lost += !sample->holder;
    return true;
}

static void put_counts(struct json *json, const struct counts *counts) {
    json_unsigned(json, "looked", counts->looked);
    json_unsigned(json, "lost", counts->lost);
    json_unsigned(json, "young", counts->young);
    json_unsigned(json, "died", counts->died);
}

static void put_file(struct json *json, int16_t file, uint64_t at) {
    if (file < 0)
        return;
    json_signed(json, "file", file);
    json_unsigned(json, "at", at);
}

static void put_thread(const struct look *look, struct json *json, int tid) {
    json_signed(json, "thread", tid);
    for (int i = 0; i < look->threads.count; i++)
        if (look->threads.thread[i].tid == tid)
            json_string(json, "name", look->threads.thread[i].name);
}

static void put_node(const struct look *look, struct json *json, const struct reach_node *node) {
    static const char *const kinds[] = {"global", "thread_local", "stack", "thread", "mapped", "java_heap", "epoll", "block"};
    json_open(json, NULL, '{');
    json_string(json, "kind", kinds[node->kind]);
    if (node->kind == REACH_BLOCK) {
        json_unsigned(json, "parent", look->told_as[node->parent] - 1u);
        json_unsigned(json, "size", node->size);
        json_bool(json, "many", node->many);
    }
    put_file(json, node->file, node->at);
    if (node->kind == REACH_THREAD_LOCAL || node->kind == REACH_STACK || node->kind == REACH_THREAD)
        put_thread(look, json, node->tid);
    if (node->kind == REACH_MAPPED && node->at) {
        const struct roots_area *area = &look->roots.area[node->at - 1];
        json_string(json, "name", area->name);
        json_unsigned(json, "start", area->range.start);
        json_unsigned(json, "end", area->range.end);
    }
    json_close(json, '}');
}

// Of all chosen stacks. A node's parent has a lower number than itself.
static void put_nodes(struct look *look, struct json *json) {
    uint16_t told = 0;
    for (uint32_t i = 0; i < look->blocks.sample_count; i++) {
        const struct sample *sample = &look->blocks.samples[i];
        if (look->is_chosen[object_of(look, sample)->stack])
            for (uint16_t node = sample->holder; node && !look->told_as[node]; node = look->reach.node[node].parent)
                look->told_as[node] = 1;
    }
    json_open(json, "nodes", '[');
    for (uint32_t node = 1; node <= look->reach.nodes; node++) {
        if (!look->told_as[node])
            continue;
        look->told_as[node] = ++told;
        put_node(look, json, &look->reach.node[node]);
    }
    json_close(json, ']');
}

// The ways by which most samples are held, as [node, samples]; the rest are counted together.
static void put_ways(struct look *look, struct json *json) {
    uint64_t rest = 0;
    for (uint32_t i = 0; i < look->way_count; i++) {
        uint16_t node = (uint16_t)look->ways[i];
        look->ways[i] = (uint64_t)look->of_node[node] << 16 | node;
        look->of_node[node] = 0;
    }
    reach_sort(look->ways, look->way_count);
    json_open(json, "held", '[');
    for (int told = 0; told < WAYS && look->way_count; told++) {
        uint64_t way = look->ways[--look->way_count];
        json_open(json, NULL, '[');
        json_unsigned(json, NULL, look->told_as[(uint16_t)way] - 1u);
        json_unsigned(json, NULL, way >> 16);
        json_close(json, ']');
    }
    json_close(json, ']');
    while (look->way_count)
        rest += look->ways[--look->way_count] >> 16;
    json_unsigned(json, "held_otherwise", rest);
}

// What a block says of its own type: a C++ object by its first word; a Python object by its second, or by its fourth, where
// the collector's two words are before it (Include/object.h). The controller knows by the name whether it is one.
static int16_t type_of(struct look *look, uintptr_t block, uint64_t *at) {
    static const size_t python[] = {1, 3};
    int16_t file = -1;
    size_t count = pages_words(&look->pages, block, 4 * sizeof(uint64_t));
    if (count)
        objects_type(&look->objects, look->pages.words[0], &file, at);
    for (size_t i = 0; i < 2 && file < 0 && python[i] < count; i++)
        objects_variable(&look->objects, look->pages.words[python[i]], &file, at);
    return file;
}

// Blocks of each small size: how many live, and to how many a way leads.
static void put_sizes(const struct look *look, struct json *json) {
    size_t size, count;
    json_open(json, "sizes", '[');
    for (unsigned i = 0; look->blocks.find && je_small_blocks(i, &size, &count); i++) {
        size_t waiting = size < REACH_SMALL ? look->roots.waiting_of[size / 8] : count;
        if (count <= waiting)
            continue;
        json_open(json, NULL, '[');
        json_unsigned(json, NULL, size);
        json_unsigned(json, NULL, count - waiting);
        json_unsigned(json, NULL, look->reach.marked_of[size / 8]);
        json_close(json, ']');
    }
    json_close(json, ']');
}

static void put_stack(struct look *look, struct json *json, uint32_t number, int64_t age) {
    const struct stack *stack = &look->copy.stacks[number];
    struct {
        uint64_t at, count;
        int16_t file;
    } types[TYPES] = {{.count = 0}};
    struct counts counts = {.looked = 0};
    size_t sizes[SIZES];
    int typed = 0, sized = 0;
    json_open(json, NULL, '{');
    json_open(json, "frames", '[');
    for (uint32_t i = 0; i < stack->length; i++)
        json_unsigned(json, NULL, look->copy.frames[stack->first + i]);
    json_close(json, ']');
    for (uint32_t i = 0; i < look->blocks.sample_count; i++) {
        const struct sample *sample = &look->blocks.samples[i];
        if (object_of(look, sample)->stack != number || !count(look, sample, age, &counts))
            continue;
        if (sample->holder && !look->of_node[sample->holder]++)
            look->ways[look->way_count++] = sample->holder;
        for (int size = 0; size < SIZES; size++) {
            if (size == sized)
                sizes[sized++] = sample->block.size;
            if (sizes[size] == sample->block.size)
                break;
        }
        if (typed++ >= TYPED)
            continue;
        uint64_t at = 0;
        int16_t file = type_of(look, sample->block.start, &at);
        for (int type = 0; file >= 0 && type < TYPES; type++) {
            if (types[type].count && (types[type].file != file || types[type].at != at))
                continue;
            types[type].file = file;
            types[type].at = at;
            types[type].count++;
            break;
        }
    }
    json_unsigned(json, "living", stack->births - stack->deaths);
    json_unsigned(json, "bytes", living_bytes(&look->copy, number));
    put_counts(json, &counts);
    put_ways(look, json);
    json_open(json, "sizes", '[');
    for (int size = 0; size < sized; size++)
        json_unsigned(json, NULL, sizes[size]);
    json_close(json, ']');
    json_open(json, "types", '[');
    for (int type = 0; type < TYPES && types[type].count; type++) {
        json_open(json, NULL, '{');
        put_file(json, types[type].file, types[type].at);
        json_unsigned(json, "samples", types[type].count);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_close(json, '}');
}

static bool put(struct look *look, const struct owned *file, const char *dump, const struct holders_told *told, int64_t age) {
    static char buffer[4096];
    struct counts others = {.looked = 0};
    struct json json;
    for (uint32_t i = 0; i < look->blocks.sample_count; i++)
        if (!look->is_chosen[object_of(look, &look->blocks.samples[i])->stack])
            count(look, &look->blocks.samples[i], age, &others);
    json_start(&json, buffer, sizeof buffer, file);
    json_open(&json, NULL, '{');
    json_signed(&json, "format", 1);
    json_string(&json, "dump", strrchr(dump, '/') + 1);
    json_seconds(&json, "time", clock_now());
    json_seconds(&json, "duration", told->milliseconds);
    json_bool(&json, "in_time", told->in_time);
    json_bool(&json, "room", !look->reach.full && !look->roots.full);
    json_bool(&json, "blocks_known", look->blocks.find != NULL);
    json_unsigned(&json, "read", told->read);
    json_unsigned(&json, "swapped", told->swapped);
    json_unsigned(&json, "failed", look->pages.failed);
    json_unsigned(&json, "reached", look->reach.marked);
    json_unsigned(&json, "living_blocks", look->living_blocks);
    put_sizes(look, &json);
    json_unsigned(&json, "interval", look->interval);
    json_signed(&json, "threads", look->threads.count);
    json_open(&json, "files", '[');
    for (int i = 0; i < look->objects.count; i++)
        json_string(&json, NULL, look->objects.path[i]);
    json_close(&json, ']');
    put_nodes(look, &json);
    json_open(&json, "stacks", '[');
    for (int i = 0; i < look->chosen_count; i++)
        put_stack(look, &json, look->chosen[i], age);
    json_close(&json, ']');
    json_open(&json, "others", '{');
    put_counts(&json, &others);
    json_close(&json, '}');
    json_close(&json, '}');
    return json_finish(&json);
}

static bool write_file(struct look *look, const char *dump, const struct holders_told *told, int64_t age) {
    char path[4096], partial[4096 + 8];
    struct owned file;
    if (snprintf(path, sizeof path, "%s.holders", dump) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    snprintf(partial, sizeof partial, "%s.part", path);
    unlink(partial);
    if (!owned_take(&file, open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)))
        return false;
    look->pages.late = false;   // the few words of types are read in any case
    look->pages.wall = look->pages.processor = INT64_MAX;
    bool written = put(look, &file, dump, told, age);
    owned_close(&file);
    if (written && rename(partial, path) == 0)
        return true;
    unlink(partial);
    return false;
}

static void leave_out(struct look *look, const void *start, size_t size) {
    roots_leave_out(&look->roots, (uintptr_t)start, (uintptr_t)start + size);
}

static struct counts count_all(const struct look *look, int64_t age) {
    struct counts counts = {.looked = 0};
    for (uint32_t i = 0; i < look->blocks.sample_count; i++)
        count(look, &look->blocks.samples[i], age, &counts);
    return counts;
}

// Fills the look. False with errno.
static bool take(struct look *look, int64_t milliseconds, size_t samples, int64_t age) {
    const void *book;
    size_t book_size;
    look->reach.pages = &look->pages;
    look->reach.blocks = &look->blocks;
    look->reach.objects = look->roots.objects = &look->objects;
    look->roots.reach = &look->reach;
    look->roots.threads = &look->threads;
    if (!pages_open(&look->pages, milliseconds))
        return false;
    look->blocks.find = feeder_is_sampler() ? NULL : je_block_finder();
    if (!look->blocks.find || !je_living_blocks(&look->living_blocks))
        look->living_blocks = 0;
    if (!feeder_interval(&look->interval))
        look->interval = 0;
    list_samples(look);
    choose(look);
    objects_look(&look->objects, (const void *)look->blocks.find);
    reach_begin(&look->reach);
    book_memory(&book, &book_size);
    leave_out(look, book, book_size);
    leave_out(look, look, sizeof *look);
    leave_out(look, look->copy.memory, look->copy.size);
    leave_out(look, look->blocks.samples, samples);
    if (!roots_look(&look->roots))
        return false;
    look->living_blocks -= look->roots.waiting < look->living_blocks ? look->roots.waiting : look->living_blocks;
    roots_follow(&look->roots);
    if (count_all(look, age).lost) {
        roots_follow_epolls(&look->roots);
        reach_run_all(&look->reach);
    }
    return true;
}

static void tell(struct look *look, struct holders_told *told, int64_t age) {
    struct counts counts = count_all(look, age);
    *told = (struct holders_told){
        .in_time = !look->pages.late,
        .complete = !look->pages.late && !look->reach.full && !look->roots.full && !look->pages.swapped &&
                    !look->pages.failed,
        .milliseconds = clock_monotonic() - look->pages.began,
        .read = look->pages.read,
        .swapped = look->pages.swapped,
        .samples = counts.looked,
        .lost = counts.lost,
    };
}

bool holders_write(const char *dump, int64_t milliseconds, struct holders_told *told) {
    struct look *look = reserve(sizeof *look);
    bool written = false;
    if (!look)
        return false;
    look->pages.memory.fd = look->pages.map.fd = -1;
    int64_t age = book_age();
    if (book_copy(&look->copy, HOLDERS_MEMORY)) {
        size_t samples = (look->copy.book->living + 1) * sizeof(struct sample);
        look->blocks.samples = reserve(samples);
        if (look->blocks.samples && take(look, milliseconds, samples, age)) {
            tell(look, told, age);
            written = write_file(look, dump, told, age);
        }
        if (look->blocks.samples)
            munmap(look->blocks.samples, samples);
        pages_close(&look->pages);
        book_free(&look->copy);
    }
    int error = errno;
    munmap(look, sizeof *look);
    errno = error;
    return written;
}
