// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Preloaded into a program of others: at each 7th malloc the agent's walk beside libgcc's. Appends to the file WALKS, when
// the program exits: how many it compared, how many differed, how many of them were left to libgcc, how many frames.
#define _GNU_SOURCE
#include "cfi.h"
#include "feeder.h"
#include "ranges.h"
#include "unwind.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <unwind.h>

#define FRAMES 200

extern void *__libc_malloc(size_t size);
const void *_Unwind_Find_FDE(void *address, void *bases);

static atomic_ulong calls, compared, different, frames;
static atomic_bool ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool busy;

bool feeder_install_hook(void (*hook)(void **, unsigned *, unsigned)) {
    (void)hook;
    return true;
}

struct wanted {
    uintptr_t addresses[FRAMES];
    unsigned length;
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *argument) {
    struct wanted *wanted = argument;
    uintptr_t address = _Unwind_GetIP(context);
    if (!address || wanted->length == FRAMES)
        return _URC_END_OF_STACK;
    wanted->addresses[wanted->length++] = address;
    return _URC_NO_REASON;
}

// Whether the agent's walk is libgcc's, or goes on where that has no table. The first frame is our own, at two calls.
static bool equal(const struct wanted *wanted, void **found, unsigned length) {
    struct { void *text, *data, *start; } bases;
    unsigned last = wanted->length - 1;
    for (unsigned i = 1; i < last; i++)
        if (i >= length || (uintptr_t)found[i] != wanted->addresses[i])
            return false;
    if (length == wanted->length && (uintptr_t)found[last] == wanted->addresses[last])
        return true;
    // It names the method of an interpreted frame, and does not say an address that is in no code.
    return length >= last && !_Unwind_Find_FDE((char *)wanted->addresses[last] - 1, &bases);
}

static __attribute__((noinline)) void compare(void) {
    void *found[FRAMES];
    unsigned length = 0;
    struct wanted wanted = {.length = 0};
    if (ranges_wanted() && !pthread_mutex_trylock(&lock)) {
        ranges_refresh();
        cfi_forget();
        pthread_mutex_unlock(&lock);
    }
    unwind_hook(found, &length, FRAMES);
    _Unwind_Backtrace(step, &wanted);
    atomic_fetch_add(&compared, 1);
    atomic_fetch_add(&frames, length);
    if (equal(&wanted, found, length) || atomic_fetch_add(&different, 1))
        return;
    for (unsigned i = 0; i < wanted.length || i < length; i++) {
        Dl_info at = {0};
        dladdr((void *)wanted.addresses[i], &at);
        dprintf(2, "%2u %12lx %12lx %s+%lx %s\n", i, i < wanted.length ? wanted.addresses[i] : 0,
                i < length ? (uintptr_t)found[i] : 0, at.dli_fname ? at.dli_fname : "", wanted.addresses[i] - (uintptr_t)at.dli_fbase,
                at.dli_sname ? at.dli_sname : "");
    }
}

void *malloc(size_t size) {
    if (atomic_load(&ready) && !busy && atomic_fetch_add(&calls, 1) % 7 == 0) {
        busy = true;
        compare();
        busy = false;
    }
    return __libc_malloc(size);
}

__attribute__((constructor)) static void begin(void) {
    const char *why;
    unwind_find_libgcc();
    unwind_prepare(UNWINDER_HYBRID, &why);
    atomic_store(&ready, true);
}

__attribute__((destructor)) static void end(void) {
    struct unwind_counts counts;
    char line[200];
    unwind_read_counts(&counts);
    int length = snprintf(line, sizeof line, "%lu %lu %lu %lu\n", atomic_load(&compared), atomic_load(&different),
                          (unsigned long)counts.by_libgcc, atomic_load(&frames));
    int file = getenv("WALKS") ? open(getenv("WALKS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file >= 0 && write(file, line, (size_t)length) == length)
        close(file);
}
