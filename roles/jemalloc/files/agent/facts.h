// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What the process, its jemalloc and this agent are, and how much memory they have.
#ifndef OFFHEAP_FACTS_H
#define OFFHEAP_FACTS_H

#include "json.h"
#include "unwind.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AGENT_VERSION "1.1.0"

struct facts {
    int64_t started;          // monotonic milliseconds
    int64_t active_since;     // epoch milliseconds; 0: not active
    enum unwinder unwinder;   // the one in use, once sampling has begun
};

void facts_start(char *text, size_t size);   // what tells this start from any other of this pid: <boot>-<milliseconds>
bool facts_cgroup(char *path, size_t size);   // the directory of the process's control group; false: not known, or the root
int64_t facts_memory_left(void);   // bytes until the process's control group, or the host, has none; -1: not known
int64_t facts_resident(const char *statm);   // bytes without files and shared memory; 0: not known
void facts_process(struct json *json, bool arguments);
void facts_jemalloc(struct json *json, const char *malloc_conf);
void facts_memory(struct json *json);

#endif
