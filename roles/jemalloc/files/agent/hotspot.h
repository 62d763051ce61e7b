// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Frames of HotSpot's interpreter, and its heap.
#ifndef OFFHEAP_HOTSPOT_H
#define OFFHEAP_HOTSPOT_H

#include <stdbool.h>
#include <stdint.h>

#define HOTSPOT_METHOD 3   // words below the frame pointer: the method that the frame interprets

bool hotspot_interprets(uintptr_t address);   // from any thread, without a lock
void hotspot_find(void);                      // finds the interpreter's code; call it once libjvm is loaded
bool hotspot_heap(uintptr_t *start, uintptr_t *end);   // where Java's objects lie; false: no JVM, or not known

#endif
