// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The directory where dumps land, and its budget.
#ifndef OFFHEAP_SPOOL_H
#define OFFHEAP_SPOOL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct spool {
    char directory[PATH_MAX];   // "": prof_prefix is not an absolute path
    char base[NAME_MAX + 1];    // dumps are <base>.<pid>.<seq>.<kind>.heap
    pid_t pid;                  // our own; other processes have dumps in it too
    int64_t files, bytes;       // at the last look
};

bool spool_find(struct spool *spool, pid_t pid);
bool spool_newest(struct spool *spool, int64_t not_before, char *name, size_t size);
void spool_thin(struct spool *spool, int64_t keep_files, int64_t keep_bytes);

#endif
