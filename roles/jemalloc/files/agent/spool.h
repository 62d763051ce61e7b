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
    char base[NAME_MAX + 1];    // of all dumps in it, also those of other processes
    char process[64];           // our own are <process>.<seq>.<kind>.heap
    int64_t files, bytes;       // at the last look
    uid_t owner;                // (uid_t)-1: unknown
};

// `prefix`: of all dumps, as prof_prefix. False if it is no absolute path.
bool spool_find(struct spool *spool, const char *prefix, const char *start, pid_t pid);
void spool_as_owner(const struct spool *spool);   // what this thread does with files from now on, where it may
void spool_thin(struct spool *spool, int64_t keep_files, int64_t keep_bytes);

#endif
