// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// From one frame to its caller by the compiler's call frame information, remembered for each return address.
#ifndef OFFHEAP_CFI_H
#define OFFHEAP_CFI_H

#include <stdbool.h>
#include <stdint.h>

// What a walk knows of a frame: where it goes on, its stack pointer there, and its frame pointer; and whether it came from
// the unwinder itself, which may not be called then.
struct frame {
    uintptr_t address, stack, pointer;
    bool inner;
};

enum cfi_step {
    CFI_CALLER,    // the frame is the caller's now
    CFI_FIRST,     // there is none: the thread begins here
    CFI_NO_TABLE,  // nothing is known of this code
    CFI_BEYOND,    // its caller's begins above `top`
    CFI_HARD,      // a frame for libgcc: it realigns its stack, a signal's handler returns to it, or the like
};

// By _Unwind_Find_FDE, without which each frame is hard, and by _dl_find_object, which not every libc has.
void cfi_find_tables(void *find_fde, void *dl_find_object);
void cfi_find_unwinder(void);   // once the ranges of executable memory are known
// Reads nothing but the tables, and the stack between the frame's stack pointer and `top`. From any thread.
enum cfi_step cfi_step(struct frame *frame, uintptr_t top);
void cfi_forget(void);   // the code at some address is another now

#endif
