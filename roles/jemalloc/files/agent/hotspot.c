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

static void read_table(void *library) {
    uint64_t table, type, field, offset, address, stride;
    if (!number(library, "gHotSpotVMStructs", &table) ||
        !number(library, "gHotSpotVMStructEntryTypeNameOffset", &type) ||
        !number(library, "gHotSpotVMStructEntryFieldNameOffset", &field) ||
        !number(library, "gHotSpotVMStructEntryOffsetOffset", &offset) ||
        !number(library, "gHotSpotVMStructEntryAddressOffset", &address) ||
        !number(library, "gHotSpotVMStructEntryArrayStride", &stride) || !table)
        return;
    const char *queue = NULL;
    uint64_t buffer = UINT64_MAX, limit = UINT64_MAX;
    for (const char *entry = (const char *)table; word(entry, type); entry += stride) {
        const char *type_name = (const char *)word(entry, type), *field_name = (const char *)word(entry, field);
        if (!strcmp(type_name, "AbstractInterpreter") && !strcmp(field_name, "_code"))
            queue = (const char *)word((const char *)word(entry, address), 0);
        if (!strcmp(type_name, "StubQueue") && !strcmp(field_name, "_stub_buffer"))
            buffer = word(entry, offset);
        if (!strcmp(type_name, "StubQueue") && !strcmp(field_name, "_buffer_limit"))
            limit = word(entry, offset);
    }
    if (!queue || buffer == UINT64_MAX || limit == UINT64_MAX)
        return;   // a JVM that is still starting, or one without an interpreter
    uint32_t size;
    memcpy(&size, queue + limit, sizeof size);
    uintptr_t start = word(queue, buffer);
    if (!start || !size)
        return;
    atomic_store_explicit(&code_start, start, memory_order_relaxed);
    atomic_store_explicit(&code_size, size, memory_order_release);
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
