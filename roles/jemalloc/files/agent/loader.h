// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The list of what the loader has opened. Its lock is held while the list is read, and a child that is forked then never
// gets it: its next dlopen waits for ever. So whoever reads the list holds ours, too, and a fork waits for that.
#ifndef OFFHEAP_LOADER_H
#define OFFHEAP_LOADER_H

#include <stddef.h>

struct dl_phdr_info;

typedef int loader_visit(struct dl_phdr_info *info, size_t size, void *context);

void loader_lock(void);            // before a fork, and around several lists
void loader_unlock(void);          // after it, in both processes
void loader_list(loader_visit *visit, void *context);   // dl_iterate_phdr(3), with the lock

#endif
