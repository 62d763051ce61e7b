// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Finds HotSpot's interpreter. Whatever method it runs, the return address lies in the same few pieces of its own code
// and names nothing. The method is in the frame, at a fixed distance from the frame pointer (frame_x86.hpp and
// frame_aarch64.hpp: interpreter_frame_method_offset, the same since JDK 9). libjvm describes the interpreter to
// debuggers: gHotSpotVMStructs (vmStructs.hpp) is a table of types and fields with their offsets or addresses.
#include "hotspot.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic uintptr_t code_start, code_size;

bool hotspot_interprets(uintptr_t address) {
    uintptr_t size = atomic_load_explicit(&code_size, memory_order_acquire);
    return address - atomic_load_explicit(&code_start, memory_order_relaxed) < size;
}

static bool number(void *library, const char *name, uint64_t *value) {
    const uint64_t *symbol = dlsym(library, name);
    if (symbol)
        *value = *symbol;
    return symbol != NULL;
}

// The word at an offset in an entry of the table.
static uint64_t word(const char *entry, uint64_t offset) {
    uint64_t value;
    memcpy(&value, entry + offset, sizeof value);
    return value;
}

struct field {
    uint64_t offset, address;   // the latter of a static one
};

// Looks a field up in the table. False if it is not there.
static bool find(void *library, const char *of_type, const char *name, struct field *found) {
    uint64_t table, type, field, offset, address, stride;
    if (!number(library, "gHotSpotVMStructs", &table) ||
        !number(library, "gHotSpotVMStructEntryTypeNameOffset", &type) ||
        !number(library, "gHotSpotVMStructEntryFieldNameOffset", &field) ||
        !number(library, "gHotSpotVMStructEntryOffsetOffset", &offset) ||
        !number(library, "gHotSpotVMStructEntryAddressOffset", &address) ||
        !number(library, "gHotSpotVMStructEntryArrayStride", &stride) || !table ||
        !stride)   // the library is still being initialised
        return false;
    for (const char *entry = (const char *)table; word(entry, type); entry += stride)
        if (!strcmp((const char *)word(entry, type), of_type) && !strcmp((const char *)word(entry, field), name)) {
            *found = (struct field){word(entry, offset), word(entry, address)};
            return true;
        }
    return false;
}

// What a static pointer points to; NULL in a JVM that is still starting, or that has no such thing.
static const char *pointed(void *library, const char *type, const char *name) {
    struct field field;
    return find(library, type, name, &field) && field.address ? (const char *)word((const char *)field.address, 0) : NULL;
}

static void read_table(void *library) {
    struct field buffer, limit;
    const char *queue = pointed(library, "AbstractInterpreter", "_code");
    if (!queue || !find(library, "StubQueue", "_stub_buffer", &buffer) ||
        !find(library, "StubQueue", "_buffer_limit", &limit))
        return;
    uint32_t size;
    memcpy(&size, queue + limit.offset, sizeof size);
    uintptr_t start = word(queue, buffer.offset);
    if (!start || !size)
        return;
    atomic_store_explicit(&code_start, start, memory_order_relaxed);
    atomic_store_explicit(&code_size, size, memory_order_release);
}

bool hotspot_heap(uintptr_t *start, uintptr_t *end) {
    struct field reserved, first, words;
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return false;
    const char *heap = pointed(library, "Universe", "_collectedHeap");
    bool known = heap && find(library, "CollectedHeap", "_reserved", &reserved) &&
                 find(library, "MemRegion", "_start", &first) && find(library, "MemRegion", "_word_size", &words);
    if (known) {
        *start = word(heap, reserved.offset + first.offset);
        *end = *start + word(heap, reserved.offset + words.offset) * sizeof(void *);
    }
    dlclose(library);
    return known && *end > *start;
}

void hotspot_find(void) {
    if (atomic_load_explicit(&code_size, memory_order_relaxed))
        return;
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return;
    read_table(library);
    dlclose(library);
}
