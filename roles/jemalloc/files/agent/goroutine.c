// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// When Go calls C, runtime.asmcgocall changes to the thread's stack. It keeps two words there, to find back: which
// goroutine it was (g), and how far below the upper end of its stack it had come. A g begins with the bounds of its
// stack (runtime/runtime2.go). Where the two words lie differs by version (runtime/asm_amd64.s), so a few are looked at;
// tried with Go 1.26. All must agree before anything is believed: the depth is less than the stack's size, and the frame
// pointer lies in the part that is in use. And only in a process that has Go in it, which says so by a note: there a g is
// never given back, while elsewhere a word that looks like one may lead to memory that another thread just unmaps.
//
// On aarch64 the frame pointer is replaced at the change of stacks, so a walk ends there.
#define _GNU_SOURCE
#include "goroutine.h"

#include "loader.h"
#include "readable.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
#define WORDS 12                  // from the stack pointer up
#define LARGEST (1ull << 30)      // runtime.maxstacksize
#define UNCHECKED __attribute__((no_sanitize("address", "thread")))   // it reads frames, which are no C objects

#define GO_NOTE 4                 // its build ID, with the owner "Go"

static bool has_go;

static bool says_go(const char *note, size_t size) {
    while (size >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) header;
        memcpy(&header, note, sizeof header);
        size_t name = ((size_t)header.n_namesz + 3) & ~(size_t)3, text = ((size_t)header.n_descsz + 3) & ~(size_t)3;
        if (name > size - sizeof header || text > size - sizeof header - name)
            return false;
        if (header.n_type == GO_NOTE && header.n_namesz == 4 && !memcmp(note + sizeof header, "Go", 3))
            return true;
        note += sizeof header + name + text;
        size -= sizeof header + name + text;
    }
    return false;
}

static int look(struct dl_phdr_info *object, size_t size, void *nothing) {
    (void)size, (void)nothing;
    for (int i = 0; i < object->dlpi_phnum && !has_go; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t note = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_NOTE && part->p_memsz >= sizeof(ElfW(Nhdr)) && readable(note) &&
            readable(note + part->p_memsz - sizeof note))
            has_go = says_go((const char *)note, part->p_memsz);
    }
    return has_go;
}

void goroutine_prepare(void) {
    loader_list(look, NULL);
}

static UNCHECKED bool is_g(uintptr_t g, uintptr_t depth, uintptr_t pointer, struct goroutine *goroutine) {
    if (g % sizeof g || depth % sizeof g || depth < 2 * sizeof g || depth > LARGEST || !readable(g) ||
        !readable(g + sizeof g))
        return false;
    uintptr_t low = ((const uintptr_t *)g)[0], high = ((const uintptr_t *)g)[1];
    if (low >= high || high - low > LARGEST || depth > high - low || pointer < high - depth ||
        pointer > high - 2 * sizeof g || pointer % sizeof g)
        return false;
    *goroutine = (struct goroutine){high - depth, high};
    return readable(goroutine->low);
}

UNCHECKED bool goroutine_called(uintptr_t at, uintptr_t pointer, struct goroutine *goroutine) {
    const uintptr_t *words = (const uintptr_t *)at;
    if (!has_go || at % sizeof at || !readable(at) || !readable(at + (WORDS - 1) * sizeof at))
        return false;
    for (size_t i = 0; i + 1 < WORDS; i++)
        if (is_g(words[i + 1], words[i], pointer, goroutine))
            return true;
    return false;
}
#else
void goroutine_prepare(void) {
}

bool goroutine_called(uintptr_t at, uintptr_t pointer, struct goroutine *goroutine) {
    (void)at, (void)pointer, (void)goroutine;
    return false;
}
#endif
