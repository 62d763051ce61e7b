// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Dumps and their sidecars.
#ifndef OFFHEAP_DUMP_H
#define OFFHEAP_DUMP_H

#include "config.h"
#include "facts.h"
#include "holders.h"
#include "problem.h"
#include "spool.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct dump {
    char path[2 * PATH_MAX];
    int64_t size, time;      // bytes; epoch milliseconds
    int64_t milliseconds;    // how long jemalloc took to write it
    bool totals;             // whether its header has the next three; they are not unbiased
    uint64_t sample_interval, objects, bytes;
};

struct dumps {
    const struct config *config;
    const struct facts *facts;
    struct spool *spool;
    struct problem *problem;
    struct dump last;
    int64_t written, failed;
    int64_t next;   // number of the next dump
    int64_t look;   // milliseconds for which the next one may look for holders; 0: it does not
    struct holders_told told;   // what it found
};

bool dump_take(struct dumps *dumps, const char *reason);   // into dumps->last; false: dumps->problem says why

#endif
