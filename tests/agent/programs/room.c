// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A plugin for swap.c, with a frame of ROOM bytes, in words. Builds with another ROOM differ in nothing else.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifndef ROOM
#define ROOM 600
#endif

static void *_Atomic kept;
static char *volatile seen;

void plugin_leak(void);

__attribute__((noinline)) void plugin_leak(void) {
    char room[ROOM];
    memset(room, 1, sizeof room);
    seen = room;
    kept = malloc(7000);
    seen = NULL;
    atomic_signal_fence(memory_order_seq_cst);   // no tail call
}
