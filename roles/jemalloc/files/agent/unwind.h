// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The backtrace hook.
#ifndef OFFHEAP_UNWIND_H
#define OFFHEAP_UNWIND_H

#include <stdint.h>

enum unwinder { UNWINDER_HYBRID, UNWINDER_FP, UNWINDER_BUILTIN };

struct unwind_counts {
    uint64_t walks;       // stacks taken
    uint64_t by_libgcc;   // of them, those with a frame that is not plain
    uint64_t continued;   // of them, those that frame pointers carried on
    uint64_t off_stack;   // not continued: on another stack than the thread's own
    uint64_t unmapped;    // ended by a frame in no executable mapping
};

extern const char *const unwinder_names[];   // by enum unwinder, then NULL
void unwind_find_libgcc(void);
// Lets libgcc's unwinder set itself up and installs the hook. Returns the unwinder that will be used; if it is not
// the `wanted` one, *why says why.
enum unwinder unwind_prepare(enum unwinder wanted, const char **why);
void unwind_hook(void **frames, unsigned *length, unsigned limit);
void unwind_read_counts(struct unwind_counts *counts);

#endif
