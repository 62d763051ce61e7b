// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What a process has the kernel keep for it: the word that comes with an event.
#ifndef OFFHEAP_EPOLLS_H
#define OFFHEAP_EPOLLS_H

#include <stdbool.h>
#include <stdint.h>

// Of a thread's open files. False if it has none: a main thread that has ended.
bool epolls_look(int tid, void (*visit)(void *context, uint64_t word), void *context);

#endif
