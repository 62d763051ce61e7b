// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Lists the images of the process with their build-ids, by which a controller finds the right symbols even when the
// files have been replaced since. Formats: proc(5), elf(5).
#include "images.h"

#include "descriptors.h"
#include "maps.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define IMAGES 4096

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

void images_list(struct json *json) {
    static struct maps_reader reader;
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
    owned_take(&memory, open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
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
}
