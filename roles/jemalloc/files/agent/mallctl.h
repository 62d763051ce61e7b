// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// mallctl(3) with types. Each returns false (or NULL) when this jemalloc has no such name.
#ifndef OFFHEAP_MALLCTL_H
#define OFFHEAP_MALLCTL_H

#include <stdbool.h>
#include <stddef.h>

void je_leave_alone(void);                // the process's own: each answers as if there were none
bool je_present(void);
bool je_get_bool(const char *name, bool *value);
bool je_set_bool(const char *name, bool value);
bool je_get_size(const char *name, size_t *value);
const char *je_get_string(const char *name);
bool je_dump(const char *path);
bool je_set_prefix(const char *prefix);   // of the dumps that jemalloc takes and names itself
bool je_owns(void *block);               // it has allocated the block
bool je_is_patched(void);                 // it is the one that the role builds
bool je_purge(void);   // gives back all pages that are kept for later
bool je_reset(void);                      // the sample interval stays
bool je_install_hook(void (*hook)(void **, unsigned *, unsigned));
typedef void je_birth(const void *pointer, size_t size, void **frames, unsigned length, size_t usable);
typedef void je_death(const void *pointer, size_t usable);
bool je_install_ledger(je_birth *born, je_death *died);   // false: this jemalloc tells nobody of what it samples
enum je_block { JE_NOTHING, JE_LIVING, JE_FREE, JE_UNUSED };   // as blocks.patch has them
// Which block lies at an address, and where its extent ends.
typedef enum je_block je_find(const void *address, void **start, size_t *size, void **extent_end);
je_find *je_block_finder(void);           // NULL: this jemalloc does not tell
// Visits what the allocator has for itself: its metadata, with their sizes; with size 0, a block that waits in a thread's
// cache to be used again, or that is such a cache. The visitor holds locks.
bool je_visit_own(void (*visit)(void *context, const void *start, size_t size), void *context);
void je_refresh_statistics(void);
bool je_living_blocks(size_t *count);     // with those that wait in a thread's cache
// Blocks of the small sizes, the same; from the statistics as they were refreshed. false: there is no such number.
bool je_small_blocks(unsigned number, size_t *size, size_t *count);

#endif
