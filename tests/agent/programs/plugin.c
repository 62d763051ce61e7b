// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What attached.c opens and closes.
#include <stdatomic.h>
#include <stdlib.h>

static void *_Atomic kept;

void plugin_leak(void);

__attribute__((noinline)) void plugin_leak(void) {
    kept = malloc(7000);
    atomic_signal_fence(memory_order_seq_cst);   // no tail call
}

__attribute__((constructor)) static void start(void) {
    void *volatile block = malloc(100);
    free(block);
}
