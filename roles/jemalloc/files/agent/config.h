// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The settings. They are copied, since a service may overwrite its environment's memory (setproctitle does).
#ifndef OFFHEAP_CONFIG_H
#define OFFHEAP_CONFIG_H

#include "unwind.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

struct config {
    char executable[PATH_MAX];
    char unit[256];
    char socket_directory[PATH_MAX];
    char malloc_conf[1024];
    char prefix[PATH_MAX];   // of the dumps, where the agent draws the samples; another's has jemalloc's
    char maps[PATH_MAX];     // a copy of /proc/self/maps, for an attached agent that sees no /proc
    int64_t lg_sample;       // the same
    int64_t detach_seconds;  // of an attached agent, from its beginning: then it detaches by itself; 0: never
    int64_t max_cost;        // of an attached agent, in thousandths of the process's CPU time: it ends itself above; 0: never
    enum unwinder unwinder;
    bool dormant;            // sampling stays off until somebody activates it
    bool children;           // children with the same executable are profiled too
    int64_t start_delay;     // seconds
    int64_t dump_seconds;    // 0: never, as the next one
    int64_t stats_seconds;
    int64_t dump_growth;     // percent of resident memory; 0: never
    bool dump_pressure;      // also when the cgroup is short of memory
    bool unset;              // our variables leave the environment once they are read
    bool may_unshare;        // the unit's filter of system calls does not kill for it
    int64_t keep_files;
    int64_t keep_bytes;
    int64_t minimum_free;    // bytes that a dump must leave free on the spool's file system
    char ignored[128];       // the first setting that made no sense
};

#define CONFIG_SETTINGS 16384

// Settings, "NAME=value" a line, instead of the environment. False: that is too long.
bool config_use(const char *text);
bool config_is_right_process(void);
bool config_is_descendant(void);   // a program that a process with an agent has started
void config_read(struct config *config);
// Where a process of the unit listens that may not write to socket_directory: a name that is no file (unix(7)).
socklen_t config_abstract_address(const struct config *config, pid_t pid, struct sockaddr_un *address);
bool config_number(const char *text, int64_t low, int64_t high, int64_t *value);

#endif
