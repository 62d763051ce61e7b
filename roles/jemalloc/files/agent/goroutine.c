// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// When Go calls C, runtime.asmcgocall changes to the thread's stack. It keeps two words there, to find back: which
// goroutine it was (g), and how far below the upper end of its stack it had come. A g begins with the bounds of its stack
// (runtime/runtime2.go). Where the two words lie differs by version (runtime/asm_amd64.s; Go 1.17 to 1.26), so a few are
// looked at. All must agree before anything is believed: the depth is less than the stack's size, and the frame pointer
// lies in the part that is in use.
//
// On aarch64 the frame pointer is replaced at the change of stacks, so a walk ends there.
#include "goroutine.h"

#include "readable.h"

#include <stddef.h>

#if defined(__x86_64__)
#define WORDS 12                  // from the stack pointer up
#define LARGEST (1ull << 30)      // runtime.maxstacksize
#define UNCHECKED __attribute__((no_sanitize("address", "thread")))   // it reads frames, which are no C objects

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
    if (at % sizeof at || !readable(at) || !readable(at + (WORDS - 1) * sizeof at))
        return false;
    for (size_t i = 0; i + 1 < WORDS; i++)
        if (is_g(words[i + 1], words[i], pointer, goroutine))
            return true;
    return false;
}
#else
bool goroutine_called(uintptr_t at, uintptr_t pointer, struct goroutine *goroutine) {
    (void)at, (void)pointer, (void)goroutine;
    return false;
}
#endif
