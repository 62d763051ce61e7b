// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Lists the images of the process with their build-ids, by which a controller finds the right symbols even when the
// files have been replaced since. Formats: proc(5), elf(5).
#define _GNU_SOURCE
#include "images.h"

#include "cfi.h"
#include "descriptors.h"
#include "loader.h"
#include "maps.h"

#include <elf.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define IMAGES 4096
#define REUSED 64

// Code that was ever seen, and where one file's lay at the place of another's: an address in a stack may be of either.
static struct seen {
    uintptr_t start, end;
    uint64_t inode;
} seen[IMAGES], reused[REUSED];
static int seen_count, reused_count;

// Reads our own memory through a file: should another thread unload the image meanwhile, the read fails, where a
// pointer would fault.
static bool peek(const struct owned *memory, uintptr_t address, void *to, size_t size) {
    return owned_still(memory) && pread(memory->fd, to, size, (off_t)address) == (ssize_t)size;
}

// The GNU build-id of the image whose file offset 0 is mapped at `base`, in hex; false when it has none.
static bool build_id(const struct owned *memory, uintptr_t base, char *hex, size_t size) {
    ElfW(Ehdr) header;
    ElfW(Phdr) program[64];
    char notes[4096];
    if (!peek(memory, base, &header, sizeof header) || memcmp(header.e_ident, ELFMAG, SELFMAG) ||
        header.e_phentsize != sizeof *program || !header.e_phnum || header.e_phnum > 64 || header.e_phoff > 4096 ||
        !peek(memory, base + header.e_phoff, program, header.e_phnum * sizeof *program))
        return false;
    uintptr_t bias = base;
    for (int i = 0; i < header.e_phnum; i++)
        if (program[i].p_type == PT_LOAD && program[i].p_offset == 0)
            bias = base - program[i].p_vaddr;
    for (int i = 0; i < header.e_phnum; i++) {
        size_t length = program[i].p_filesz;
        if (program[i].p_type != PT_NOTE || length > sizeof notes ||
            !peek(memory, bias + program[i].p_vaddr, notes, length))
            continue;
        size_t align = program[i].p_align == 8 ? 8 : 4;
        for (size_t at = 0; length - at >= sizeof(ElfW(Nhdr)) && at < length;) {
            ElfW(Nhdr) note;
            memcpy(&note, notes + at, sizeof note);
            size_t name = at + sizeof note;
            if (note.n_namesz > length || note.n_descsz > length)
                break;
            size_t description = (name + note.n_namesz + align - 1) & -align;
            if (description + note.n_descsz > length)
                break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !memcmp(notes + name, "GNU", 4) &&
                note.n_descsz && note.n_descsz * 2 < size) {
                for (size_t k = 0; k < note.n_descsz; k++)
                    snprintf(hex + 2 * k, 3, "%02x", (unsigned char)notes[description + k]);
                return true;
            }
            at = (description + note.n_descsz + align - 1) & -align;
        }
    }
    return false;
}

static void add(struct seen *list, int *count, int most, const struct mapping *mapping) {
    if (*count < most)
        list[(*count)++] = (struct seen){mapping->start, mapping->end, mapping->inode};
}

static void note(const struct mapping *mapping) {
    bool known = false, replaces = false;
    for (int i = 0; i < seen_count; i++) {
        if (mapping->start >= seen[i].end || seen[i].start >= mapping->end)
            continue;
        known |= seen[i].inode == mapping->inode;
        replaces |= seen[i].inode != mapping->inode;
    }
    if (known)
        return;
    add(seen, &seen_count, IMAGES, mapping);
    if (replaces)
        add(reused, &reused_count, REUSED, mapping);
}

static struct maps_reader reader;

static int objects_opened(struct dl_phdr_info *info, size_t size, void *opened) {
    (void)size;
    *(unsigned long long *)opened = info->dlpi_adds;
    return 1;
}

void images_note(void) {
    static unsigned long long known;
    unsigned long long opened = 0;
    struct mapping mapping;
    loader_list(objects_opened, &opened);
    if (opened == known)
        return;
    cfi_forget();
    if (!maps_open(&reader))
        return;
    known = opened;
    while (maps_next(&reader, &mapping))
        if (mapping.executable && *mapping.path == '/' && mapping.inode)
            note(&mapping);
    maps_close(&reader);
}

static void list_reused(struct json *json) {
    char range[40];
    json_open(json, "reused", '[');
    for (int i = 0; i < reused_count; i++) {
        snprintf(range, sizeof range, "%" PRIxPTR "-%" PRIxPTR, reused[i].start, reused[i].end);
        json_string(json, NULL, range);
    }
    json_close(json, ']');
}

void images_list(struct json *json) {
    static char first[PATH_MAX];   // path of the file whose mappings we are at
    struct mapping mapping;
    struct owned memory;
    uintptr_t base = 0;
    uint64_t inode = 0;
    int images = 0;
    char hex[129];
    if (!maps_open(&reader)) {
        json_null(json, "images");
        return;
    }
    if (!owned_take(&memory, open(owned_process("mem"), O_RDONLY | O_CLOEXEC))) {
        maps_close(&reader);
        json_null(json, "images");   // whoever collects it looks at the files
        return;
    }
    json_open(json, "images", '[');
    while (maps_next(&reader, &mapping) && images < IMAGES) {
        if (*mapping.path != '/' || !mapping.inode)
            continue;
        if (mapping.offset == 0 && (inode != mapping.inode || strcmp(first, mapping.path))) {
            snprintf(first, sizeof first, "%s", mapping.path);
            inode = mapping.inode;
            base = mapping.start;
        }
        if (!mapping.executable || !base || inode != mapping.inode || strcmp(first, mapping.path))
            continue;
        bool known = build_id(&memory, base, hex, sizeof hex);
        base = 0;   // one line for each image
        json_open(json, NULL, '{');
        json_string(json, "path", mapping.path);
        json_string(json, "build_id", known ? hex : NULL);
        json_close(json, '}');
        images++;
    }
    json_close(json, ']');
    owned_close(&memory);
    maps_close(&reader);
    images_note();
    list_reused(json);
}
