// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The entries by which the objects of a process call functions of other objects (global offset tables).
#ifndef OFFHEAP_GOT_H
#define OFFHEAP_GOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct got_hook {
    const char *name;
    void *function;
    void **own;   // of a function that only some allocators have: where to put that; NULL for what our calls lead to
};

bool got_prepare(const struct got_hook *hooks, size_t count);   // once; false: no memory
void got_redirect(void);           // each entry of these names in each object, but ours and the loader's, to its hook
void got_follow(void);             // the same, where objects came or went since: call it each second
size_t got_redirected(void);       // how many entries were led to hooks
size_t got_taken(void);            // how many of these led to another tool when got_follow last looked
size_t got_put_back(size_t *left); // how many hold again what they held; `left`: that could not be
bool got_is_ours(uintptr_t address);   // lies in this library; after got_prepare

#endif
