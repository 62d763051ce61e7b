// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// As the loader lists them (dl_iterate_phdr(3), elf(5)). Thread-local memory that the loader placed at the start lies at
// the same distance from each thread's descriptor, so that of our own thread tells where it is in all.
#define _GNU_SOURCE
#include "objects.h"

#include "descriptors.h"
#include "loader.h"

#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DESCRIPTOR 4096          // bytes of a thread's descriptor, at most
#define FAR (1 << 20)            // what is farther away was not placed at the start

struct looking {
    struct objects *objects;
    const void *allocator;
};

static int16_t name(struct objects *objects, const char *path) {
    char own[PATH_MAX];
    ssize_t length = *path ? (ssize_t)strlen(path) : readlink(owned_process("exe"), own, sizeof own);
    length = length < 0 ? 0 : length;
    if (objects->count == OBJECTS || objects->names_used + (size_t)length + 1 > sizeof objects->names) {
        objects->full = true;
        return -1;
    }
    char *to = objects->names + objects->names_used;
    memcpy(to, *path ? path : own, (size_t)length);
    objects->names_used += (size_t)length + 1;
    objects->path[objects->count] = to;
    return objects->count++;
}

static void add(struct objects_range *ranges, int *count, int most, struct objects_range range, bool *full) {
    if (*count < most)
        ranges[(*count)++] = range;
    else
        *full = true;
}

static void add_thread(struct objects *objects, const struct dl_phdr_info *info, size_t size, int16_t file) {
    intptr_t start = (intptr_t)info->dlpi_tls_data - (intptr_t)pthread_self();
    if (!info->dlpi_tls_data || start < -FAR || start > FAR)
        return;
    struct objects_range range = {(uintptr_t)start, (uintptr_t)start + size, 0, file};
    add(objects->thread, &objects->thread_count, OBJECTS, range, &objects->full);
    objects->thread_low = start < objects->thread_low ? start : objects->thread_low;
    if (start + (intptr_t)size > objects->thread_high)
        objects->thread_high = start + (intptr_t)size;
}

static int look(struct dl_phdr_info *info, size_t size, void *context) {
    const struct looking *looking = context;
    struct objects *objects = looking->objects;
    int16_t file = name(objects, info->dlpi_name);
    (void)size;
    if (file < 0)
        return 1;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        struct objects_range range = {start, end, info->dlpi_addr, file};
        uintptr_t self = (uintptr_t)objects_look, other = (uintptr_t)looking->allocator;
        if (part->p_type == PT_LOAD)   // an allocator that is linked into the program has no file of its own
            objects->left_out[file] |= (self >= start && self < end) || (*info->dlpi_name && other >= start && other < end);
        if (part->p_type == PT_LOAD && part->p_flags & PF_W)
            add(objects->data, &objects->data_count, OBJECTS_RANGES, range, &objects->full);
        else if (part->p_type == PT_GNU_RELRO)
            add(objects->constant, &objects->constant_count, OBJECTS, range, &objects->full);
        else if (part->p_type == PT_TLS)
            add_thread(objects, info, part->p_memsz, file);
    }
    return 0;
}

void objects_look(struct objects *objects, const void *allocator) {
    objects->thread_low = -DESCRIPTOR;
    objects->thread_high = DESCRIPTOR;
    loader_list(look, &(struct looking){objects, allocator});
    for (int i = 1; i < objects->constant_count; i++) {   // they come almost in order
        struct objects_range moved = objects->constant[i];
        int at = i;
        for (; at && objects->constant[at - 1].start > moved.start; at--)
            objects->constant[at] = objects->constant[at - 1];
        objects->constant[at] = moved;
    }
}

void objects_type(const struct objects *objects, uint64_t word, int16_t *file, uint64_t *at) {
    int low = 0, high = objects->constant_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (objects->constant[middle].end <= word)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == objects->constant_count || word < objects->constant[low].start || word % sizeof(void *))
        return;
    *file = objects->constant[low].file;
    *at = word - objects->constant[low].bias;
}

void objects_variable(const struct objects *objects, uint64_t word, int16_t *file, uint64_t *at) {
    for (int i = 0; i < objects->data_count && word % sizeof(void *) == 0; i++) {
        const struct objects_range *range = &objects->data[i];
        if (word < range->start || word >= range->end)
            continue;
        *file = range->file;
        *at = word - range->bias;
        return;
    }
}

int16_t objects_thread_local(const struct objects *objects, intptr_t relative, uint64_t *at) {
    for (int i = 0; i < objects->thread_count; i++) {
        const struct objects_range *range = &objects->thread[i];
        if (relative >= (intptr_t)range->start && relative < (intptr_t)range->end) {
            *at = (uint64_t)(relative - (intptr_t)range->start);
            return range->file;
        }
    }
    return -1;
}
