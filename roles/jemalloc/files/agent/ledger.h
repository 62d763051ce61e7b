// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The book of lives: by stack, how many sampled objects were born, at what ages they died, and when each that lives was
// born. docs/archive_format.md describes the file.
#ifndef OFFHEAP_LEDGER_H
#define OFFHEAP_LEDGER_H

#include "descriptors.h"

#include <stdbool.h>

void ledger_begin(void);   // a new book, from now on; before sampling is switched on, or after a reset
// Writes the book beside a dump. False with errno if that fails; true, writing nothing, where there is no book.
bool ledger_write(const char *dump);
bool ledger_dump(const struct owned *file);   // where no jemalloc does it: its format, from the book. False with errno

#endif
