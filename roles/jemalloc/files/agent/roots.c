// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Variables go first: what one of them leads to is told as held by it, though a word on some stack may lead there, too.
// Memory that is neither a variable, nor a stack, nor the allocator's goes last: a Java heap, an arena of the service's
// own, or what somebody forgot there. Nothing of the allocator's own memory holds anything, and nothing of the agent's.
#define _GNU_SOURCE
#include "roots.h"

#include "epolls.h"
#include "hotspot.h"
#include "maps.h"

#include <pthread.h>
#include <string.h>

#define RED_ZONE 128             // below the stack pointer
#define NEAR_TOP 4096            // bytes between a thread's stack and its thread-local memory, at most
#define NEAR 512                 // bytes between elements of an array, and between those that are told
#define ARRAY 64                 // elements that are told each, in any case

static struct maps_reader reader;

// The first range that ends above the address.
static uint32_t above(const struct roots *roots, uintptr_t address) {
    uint32_t low = 0, high = roots->out_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (roots->out[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void roots_leave_out(struct roots *roots, uintptr_t start, uintptr_t end) {
    uint32_t first = above(roots, start), last = first;
    for (; last < roots->out_count && roots->out[last].start <= end; last++) {   // they become one
        start = start < roots->out[last].start ? start : roots->out[last].start;
        end = end > roots->out[last].end ? end : roots->out[last].end;
    }
    if (first == last && roots->out_count == ROOTS_AREAS) {
        roots->full = true;   // it would be taken for a holder: unclear, but never lost
        return;
    }
    memmove(roots->out + first + 1, roots->out + last, (roots->out_count - last) * sizeof *roots->out);
    roots->out_count = roots->out_count - last + first + 1;
    roots->out[first] = (struct roots_range){start, end};
}

static const char *kept_name(struct roots *roots, const char *name) {
    size_t size = strlen(name) + 1;
    if (size == 1 || roots->names_used + size > sizeof roots->names)
        return "";
    char *to = memcpy(roots->names + roots->names_used, name, size);
    roots->names_used += size;
    return to;
}

// Whether reading it could wait for a device. What is below /dev/shm and /dev/hugepages, and /dev/zero, is memory.
static bool is_device(const char *path) {
    return !strncmp(path, "/dev/", 5) && strncmp(path, "/dev/shm/", 9) && strncmp(path, "/dev/zero", 9) &&
           strncmp(path, "/dev/hugepages", 14);
}

static bool list_areas(struct roots *roots) {
    struct mapping mapping;
    if (!maps_open(&reader))
        return false;
    while (maps_next(&reader, &mapping)) {
        bool sealed = mapping.anonymous && !mapping.none;   // it was written to, and may be read alone by now
        if (!(mapping.writable || sealed) || !strncmp(mapping.path, "[v", 2) || is_device(mapping.path))
            continue;
        if (roots->area_count == ROOTS_AREAS) {
            roots->full = true;
            break;
        }
        bool heap = !strcmp(mapping.path, "[heap]");
        roots->area[roots->area_count++] = (struct roots_area){
            {mapping.start, mapping.end}, kept_name(roots, mapping.path), mapping.anonymous || heap};
    }
    maps_close(&reader);
    return true;
}

static void add_rest(struct roots *roots, uintptr_t start, uintptr_t end) {
    struct roots_range *last = roots->rest_count ? &roots->rest[roots->rest_count - 1] : NULL;
    if (last && last->end == start)
        last->end = end;
    else if (roots->rest_count < ROOTS_AREAS)
        roots->rest[roots->rest_count++] = (struct roots_range){start, end};
    else
        roots->full = true;
}

// Walks over the extents of the allocator, and asks page by page only where memory is not the allocator's. Of a mebibyte
// without pages it asks nothing: a service may reserve terabytes. If a large block should begin there, its pages are looked
// at as memory of nobody's.
static void part(struct roots *roots, const struct roots_area *area) {
    struct blocks *blocks = roots->reach->blocks;
    size_t page = roots->reach->pages->page;
    uintptr_t end;
    if (!area->anonymous || !blocks->find) {
        add_rest(roots, area->range.start, area->range.end);
        return;
    }
    for (uintptr_t at = area->range.start, asked = 0; at < area->range.end && !roots->reach->pages->late; at = end) {
        bool any = true;
        if (at >= asked)
            asked = pages_next_chunk(roots->reach->pages, at, &any);
        if (!any) {
            end = asked < area->range.end ? asked : area->range.end;
            add_rest(roots, at, end);
        } else if (blocks_extent(blocks, at, &end)) {
            blocks->low = at < blocks->low ? at : blocks->low;
            blocks->high = end > blocks->high ? end : blocks->high;
            end = end > at ? end : at + page;
        } else {
            end = at + page;
            add_rest(roots, at, end);
        }
    }
}

static void leave_out_own(void *context, const void *start, size_t size) {
    struct roots *roots = context;
    struct block block;
    if (size) {
        roots_leave_out(roots, (uintptr_t)start, (uintptr_t)start + size);
        return;
    }
    roots->waiting++;
    if (blocks_find(roots->reach->blocks, (uintptr_t)start, &block) && block.size < REACH_SMALL)
        roots->waiting_of[block.size / 8]++;
    reach_leave_out(roots->reach, (uintptr_t)start);
}

bool roots_look(struct roots *roots) {
    struct blocks *blocks = roots->reach->blocks;
    threads_look(roots->threads);   // first, so that the stacks of all of them are in the list
    if (!list_areas(roots))
        return false;
    if (!hotspot_heap(&roots->java.start, &roots->java.end))
        roots->java = (struct roots_range){0, 0};
    if (blocks->find)
        blocks->low = UINTPTR_MAX;
    for (uint32_t i = 0; i < roots->area_count && !roots->reach->pages->late; i++)
        part(roots, &roots->area[i]);
    if (blocks->find)
        roots->full |= !je_visit_own(leave_out_own, roots);
    roots->full |= blocks->full || roots->objects->full || roots->threads->full;
    return true;
}

// Globals that lead to blocks of one size and follow each other: elements of an array, if there are many.
struct run {
    uint64_t told, last;          // addresses in the file
    size_t size;
    unsigned length;
};

// As which address a global is told. Once there are many nodes, the elements of an array share some: else a table of a
// million would use them all up.
static uint64_t told_at(const struct reach *reach, struct run *run, uint64_t at, size_t size) {
    if (size != run->size || at - run->last >= NEAR)
        *run = (struct run){.told = at, .size = size};
    run->last = at;
    if (++run->length <= ARRAY || reach->nodes < REACH_EXACT || at - run->told >= NEAR)
        run->told = at;
    return run->told;
}

// Whether it lies in the heap of Java objects. ZGC does not tell where that is, but names its memory.
static bool is_javas(const struct roots *roots, uintptr_t at, const struct roots_area *area) {
    static const char zgc[] = "/memfd:java_heap";
    return at - roots->java.start < roots->java.end - roots->java.start || !strncmp(area->name, zgc, sizeof zgc - 1);
}

// Calls reach_point for each word in [start, end) that leads to something new, with a node for it.
static void scan(struct roots *roots, uintptr_t start, uintptr_t end, const struct reach_node *root) {
    struct reach *reach = roots->reach;
    struct run run = {.size = 0};
    start = (start + 7) & ~(uintptr_t)7;
    for (uintptr_t at = start; at < end && !reach->pages->late; at += PAGES_PIECE) {
        size_t count = pages_words(reach->pages, at, end - at);
        for (size_t i = 0; i < count; i++) {
            uint64_t word = reach->pages->words[i];
            struct reach_node node = *root;
            size_t size;
            if (!reach_is_new(reach, word, &size))
                continue;   // else each word of a program's tables would be a node
            if (node.kind == REACH_GLOBAL)
                node.at = told_at(reach, &run, node.at + at + i * sizeof word, size);
            if (node.kind == REACH_MAPPED && is_javas(roots, at, &roots->area[node.at - 1]))
                node = (struct reach_node){.kind = REACH_JAVA_HEAP, .file = -1};
            if (node.kind == REACH_THREAD_LOCAL) {
                node.file = objects_thread_local(roots->objects, (intptr_t)(at + i * sizeof word - root->at), &node.at);
                node.kind = node.file < 0 ? REACH_THREAD : REACH_THREAD_LOCAL;
                node.at = node.file < 0 ? 0 : node.at;
                if (node.file >= 0 && roots->objects->left_out[node.file])
                    continue;
            }
            reach_point(reach, word, reach_node(reach, node));
        }
    }
}

static const struct roots_area *area_of(const struct roots *roots, uintptr_t address) {
    for (uint32_t i = 0; i < roots->area_count; i++)
        if (address >= roots->area[i].range.start && address < roots->area[i].range.end)
            return &roots->area[i];
    return NULL;
}

// Where a thread's stack lies, from the lowest page that was touched; empty where that is not known. Other memory may lie in
// the same mapping: that of a fiber is a part of what the service mapped, and from glibc 2.42 on no mapping ends at a stack.
// So it is libc's if all was touched from the stack pointer up to the thread's descriptor.
static bool stack_of(const struct roots *roots, const struct thread *thread, struct roots_range *stack) {
    uintptr_t locals = thread->descriptor + (uintptr_t)roots->objects->thread_low - NEAR_TOP;
    uintptr_t top = thread->descriptor + (uintptr_t)roots->objects->thread_high;
    uintptr_t inside = thread->stack ? thread->stack : locals;
    const struct roots_area *area = area_of(roots, inside);
    struct block block;
    if (!inside || !area)
        return false;
    *stack = area->range;
    if (roots->reach->blocks->find && blocks_find(roots->reach->blocks, inside, &block))
        *stack = (struct roots_range){block.start, block.start + block.size};   // which the service allocated itself
    else if (strcmp(area->name, "[stack]"))
        stack->start = thread->descriptor < inside || thread->descriptor >= stack->end
                           ? UINTPTR_MAX
                           : pages_run(roots->reach->pages, locals > inside ? locals : inside, stack->start);
    if (stack->start > inside)
        *stack = (struct roots_range){inside, inside};   // it is looked at with the rest
    else if (thread->descriptor >= inside && thread->descriptor < stack->end && top < stack->end)
        stack->end = top;
    return true;
}

static void follow_thread_locals(struct roots *roots, const struct thread *thread) {
    struct reach_node root = {.kind = REACH_THREAD_LOCAL, .file = -1, .at = thread->descriptor, .tid = thread->tid};
    if (thread->descriptor)
        scan(roots, thread->descriptor + (uintptr_t)roots->objects->thread_low,
             thread->descriptor + (uintptr_t)roots->objects->thread_high, &root);
}

static void follow_stack(struct roots *roots, const struct thread *thread) {
    struct roots_range stack;
    if (!stack_of(roots, thread, &stack)) {
        roots->full |= threads_has(thread->tid);   // one that has ended holds nothing
        return;
    }
    uintptr_t from = thread->stack ? thread->stack - RED_ZONE : stack.start;
    uintptr_t locals = thread->descriptor + (uintptr_t)roots->objects->thread_low;   // these were looked at
    roots_leave_out(roots, stack.start, stack.end);
    scan(roots, from > stack.start ? from : stack.start, locals > from && locals < stack.end ? locals : stack.end,
         &(struct reach_node){.kind = REACH_STACK, .file = -1, .tid = thread->tid});
}

static void follow_rest(struct roots *roots) {
    for (uint32_t i = 0, area = 0; i < roots->rest_count && !roots->reach->pages->late; i++) {
        for (uintptr_t at = roots->rest[i].start, end; at < roots->rest[i].end; at = end) {
            while (roots->area[area].range.end <= at)
                area++;
            uint32_t out = above(roots, at);
            end = roots->rest[i].end;
            end = roots->area[area].range.end < end ? roots->area[area].range.end : end;
            if (out < roots->out_count && roots->out[out].start <= at) {
                end = roots->out[out].end < end ? roots->out[out].end : end;
                continue;
            }
            end = out < roots->out_count && roots->out[out].start < end ? roots->out[out].start : end;
            scan(roots, at, end, &(struct reach_node){.kind = REACH_MAPPED, .file = -1, .at = area + 1});
        }
    }
}

void roots_follow(struct roots *roots) {
    const struct objects *objects = roots->objects;
    uintptr_t own_top = (uintptr_t)pthread_self() + (uintptr_t)objects->thread_high;
    for (int i = 0; i < objects->data_count; i++) {
        const struct objects_range *range = &objects->data[i];
        roots_leave_out(roots, range->start, range->end);
        if (!objects->left_out[range->file])
            scan(roots, range->start, range->end,
                 &(struct reach_node){.kind = REACH_GLOBAL, .file = range->file, .at = -range->bias});
    }
    reach_run(roots->reach);
    for (int i = 0; i < roots->threads->count; i++)
        follow_thread_locals(roots, &roots->threads->thread[i]);
    reach_run(roots->reach);
    for (int i = 0; i < roots->threads->count; i++)
        follow_stack(roots, &roots->threads->thread[i]);
    roots_leave_out(roots, own_top - THREADS_OWN_STACK, own_top);
    reach_run(roots->reach);
    follow_rest(roots);
    reach_run(roots->reach);
}

static void add_waiting(void *context, uint64_t word) {
    struct roots *roots = context;
    reach_point(roots->reach, word, reach_node(roots->reach, (struct reach_node){.kind = REACH_EPOLL, .file = -1}));
}

void roots_follow_epolls(struct roots *roots) {
    size_t files = 0;   // all threads have the same
    for (int i = 0; i < roots->threads->count && !files && !roots->reach->pages->late; i++) {
        int tid = roots->threads->thread[i].tid;
        files = epolls_files(tid);
        if (files > EPOLLS_FILES)
            roots->full = true;
        else
            epolls_look(tid, add_waiting, roots);
    }
    reach_run(roots->reach);
}
