// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A server with workers may keep its leak in processes that nobody profiles, and a dump of the first one looks healthy.
// So each dump notes how much memory the others of the control group hold, without files and shared memory. One with a
// socket beside ours has dumps of its own. Formats: cgroups(7), statm and comm in proc(5).
#include "others.h"

#include "descriptors.h"
#include "facts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST 4096   // processes that are looked at
#define NAMED 4     // the largest are named

struct other {
    int pid;
    int64_t resident;
    char name[32];
};

static bool measure(struct other *other) {
    char path[64], statm[256];
    snprintf(path, sizeof path, "/proc/%d/statm", other->pid);
    if (owned_slurp(path, statm, sizeof statm) <= 0)
        return false;
    other->resident = facts_resident(statm);
    return true;
}

// Keeps the largest, in their order.
static void keep(struct other *largest, const struct other *other) {
    for (int i = 0; i < NAMED; i++)
        if (other->resident > largest[i].resident) {
            memmove(largest + i + 1, largest + i, (size_t)(NAMED - 1 - i) * sizeof *largest);
            largest[i] = *other;
            return;
        }
}

static void put(struct json *json, struct other *other) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", other->pid);
    ssize_t length = owned_slurp(path, other->name, sizeof other->name);
    json_open(json, NULL, '{');
    json_signed(json, "pid", other->pid);
    if (length > 0)
        json_bytes(json, "name", other->name, strcspn(other->name, "\n"));
    else
        json_null(json, "name");
    json_signed(json, "rss", other->resident);
    json_close(json, '}');
}

static bool has_agent(const struct config *config, int pid) {
    static char path[PATH_MAX + 16];
    struct sockaddr_un address;
    struct owned probe;
    snprintf(path, sizeof path, "%s/%d.sock", config->socket_directory, pid);
    if (access(path, F_OK) == 0)
        return true;
    socklen_t size = config_abstract_address(config, pid, &address);
    if (!owned_take(&probe, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)))
        return false;
    bool listens = connect(probe.fd, (struct sockaddr *)&address, size) == 0;
    owned_close(&probe);
    return listens;
}

void others_list(struct json *json, const struct config *config) {
    static char group[PATH_MAX], path[2 * PATH_MAX], processes[32 * 1024];
    struct other largest[NAMED] = {{.pid = 0}}, other;
    int64_t count = 0, resident = 0;
    bool known = facts_cgroup(group, sizeof group);
    if (known)
        snprintf(path, sizeof path, "%s/cgroup.procs", group);
    if (!known || owned_slurp(path, processes, sizeof processes) < 0) {
        json_null(json, "others");
        return;
    }
    char *at = processes;
    for (int looked = 0; looked < MOST && (other.pid = (int)strtol(at, &at, 10)) > 0; looked++) {
        if (other.pid == getpid() || has_agent(config, other.pid) || !measure(&other))
            continue;
        count++;
        resident += other.resident;
        keep(largest, &other);
    }
    json_open(json, "others", '{');
    json_signed(json, "processes", count);
    json_signed(json, "rss", resident);
    json_open(json, "largest", '[');
    for (int i = 0; i < NAMED && largest[i].pid; i++)
        put(json, &largest[i]);
    json_close(json, ']');
    json_close(json, '}');
}
