// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The log of memory statistics.
#ifndef OFFHEAP_STATISTICS_H
#define OFFHEAP_STATISTICS_H

#include "problem.h"
#include "spool.h"

void statistics_append(const struct spool *spool, struct problem *problem);

#endif
