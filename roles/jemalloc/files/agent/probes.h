// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The probes otel_memory:alloc and otel_memory:free: tell whoever attaches to them which sampled object is born or dies.
#ifndef OFFHEAP_PROBES_H
#define OFFHEAP_PROBES_H

#include <stdbool.h>
#include <stddef.h>

void probes_interval(size_t bytes);   // of the samples, from now on
void probes_born(const void *pointer, size_t size);
void probes_died(const void *pointer);
bool probes_attached(void);            // whether anybody has attached to births

#endif
