// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Samples the allocations of a process that keeps its own allocator.
#ifndef OFFHEAP_SAMPLER_H
#define OFFHEAP_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool sampler_prepare(size_t lg_interval);   // false: this kernel cannot keep a book, or there is no memory
void sampler_leave_out_this_thread(void);
void sampler_install_hook(void (*hook)(void **, unsigned *, unsigned));   // the unwinder
void sampler_redirect(void);         // entries, if they are not yet; the hooks pass on until it is switched on
bool sampler_switch(bool on);        // entries are redirected when it is first switched on
bool sampler_active(void);           // never in a forked child
size_t sampler_lg_interval(void);
bool sampler_follow(void);           // objects that the process opened or closed; true: call it each second
size_t sampler_detach(size_t *left); // how many entries were put back; `left`: how many could not be
size_t sampler_entries(void);        // that were led to hooks
size_t sampler_taken(void);          // of these, how many another tool has led elsewhere since
uint64_t sampler_unseen(void);       // objects whose death went past the hooks
uint64_t sampler_spent(void);        // nanoseconds that the hooks took for what is sampled, ever

#endif
