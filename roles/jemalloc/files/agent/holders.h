// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Who holds what lives: the way from a root to each sampled block, or that there is none.
#ifndef OFFHEAP_HOLDERS_H
#define OFFHEAP_HOLDERS_H

#include <stdbool.h>
#include <stdint.h>

#define HOLDERS_MEMORY (72 << 20)   // bytes that a look may take, besides a copy of the book

struct holders_told {
    bool in_time, complete;      // the latter: everything that could hold a block was read
    int64_t milliseconds;
    uint64_t read, swapped;      // bytes; the latter were not read
    uint64_t samples, lost;      // that lived before and after, and of these, to which no way leads
};

// Looks for so long at most, and writes <dump>.holders. False with errno.
bool holders_write(const char *dump, int64_t milliseconds, struct holders_told *told);

#endif
