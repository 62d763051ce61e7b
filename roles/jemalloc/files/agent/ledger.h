// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The book of lives: by stack, how many sampled objects were born, at what ages they died, and when each that lives was
// born. docs/archive_format.md describes the file.
#ifndef OFFHEAP_LEDGER_H
#define OFFHEAP_LEDGER_H

#include "descriptors.h"

#include <stdbool.h>
#include <stdint.h>

// A new book, from now on; before sampling is switched on, or after a reset. False with errno: it has no memory.
bool ledger_begin(void);
// Both copy the book, which may take so much memory, in bytes, and are false with errno if they fail.
// Writes it beside a dump; true, writing nothing, where there is none.
bool ledger_write(const char *dump, int64_t memory);
bool ledger_dump(const struct owned *file, int64_t memory);   // where no jemalloc does it: its format, from the book
bool ledger_write_maps(const struct owned *file);   // at its end

#endif
