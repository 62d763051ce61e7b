// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Whether memory can be read, without reading it.
#ifndef OFFHEAP_READABLE_H
#define OFFHEAP_READABLE_H

#include <stdbool.h>
#include <stdint.h>

bool readable(uintptr_t address);   // the eight bytes there; may change errno

#endif
