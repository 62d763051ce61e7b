// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// dlopen without RTLD_DEEPBIND: it takes the place of the C library's, and no other part calls it by another name.
#ifndef OFFHEAP_DEEPBIND_H
#define OFFHEAP_DEEPBIND_H

typedef void *opener(const char *name, int flags);

__attribute__((visibility("hidden"))) opener *deepbind_find(void);   // called by the dlopen in here

#endif
