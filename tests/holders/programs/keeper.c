// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The plugin of held.c.
#include <stdlib.h>
#include <string.h>

#define COUNT 3000

void keep(void);

extern char *kept_by_a_plugin[COUNT];   // not static: what is never read would not be stored
char *kept_by_a_plugin[COUNT];

__attribute__((noinline)) void keep(void) {
    for (int i = 0; i < COUNT; i++)
        kept_by_a_plugin[i] = memset(malloc(350), 1, 350);
}
