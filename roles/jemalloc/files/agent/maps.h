// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// /proc/self/maps without malloc. A process that sees no /proc may have a copy elsewhere.
#ifndef OFFHEAP_MAPS_H
#define OFFHEAP_MAPS_H

#include "descriptors.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mapping {
    uintptr_t start, end;
    bool executable, none;   // none: no permission at all (reserved)
    bool writable;           // and readable
    bool anonymous;
    uint64_t offset, inode;
    char *path;              // in the reader's buffer; without " (deleted)"; "" for anonymous memory
};

struct maps_reader {
    struct owned file;
    bool skipping;
    size_t start, length;
    char buffer[2 * PATH_MAX];
};

void maps_use(const char *path);   // the copy; "" if there is none
int maps_descriptor(void);         // a new one, for the text as it is; -1 if there is none
bool maps_open(struct maps_reader *reader);
bool maps_next(struct maps_reader *reader, struct mapping *mapping);
void maps_close(struct maps_reader *reader);

#endif
