// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The stack of a goroutine that calls C.
#ifndef OFFHEAP_GOROUTINE_H
#define OFFHEAP_GOROUTINE_H

#include <stdbool.h>
#include <stdint.h>

// What of a goroutine's stack is in use: *low holds the return address of the call that changed to the thread's stack.
struct goroutine {
    uintptr_t low, top;
};

void goroutine_prepare(void);   // finds out whether there is Go in this process

// Whether Go's frame at `at` on the thread's stack was called by a goroutine whose frame pointer is `pointer`.
bool goroutine_called(uintptr_t at, uintptr_t pointer, struct goroutine *goroutine);

#endif
