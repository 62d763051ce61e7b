// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What a process has the kernel keep for it: the word that comes with an event.
#ifndef OFFHEAP_EPOLLS_H
#define OFFHEAP_EPOLLS_H

#include <stddef.h>
#include <stdint.h>

#define EPOLLS_FILES 10000   // with more of them open a list may be so long that a service would feel the wait

size_t epolls_files(int tid);   // that a thread has open; a main thread that has ended has none
void epolls_look(int tid, void (*visit)(void *context, uint64_t word), void *context);   // of these files

#endif
