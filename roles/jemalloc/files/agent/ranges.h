// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Which memory is executable.
#ifndef OFFHEAP_RANGES_H
#define OFFHEAP_RANGES_H

#include <stdbool.h>
#include <stdint.h>

struct code {
    uintptr_t start, end;
    bool file;   // of a file, not made by the program
};

// From any thread, without a lock. *last is the range of the walk's last address, where the next one mostly lies too.
bool ranges_executable(uintptr_t address, struct code *last);
bool ranges_refresh(void);   // reads the process's maps; true when something is new
bool ranges_wanted(void);    // whether an address was not found since the last refresh

#endif
