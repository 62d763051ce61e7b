// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A dump and its sidecar. jemalloc names the dump and writes it in place; <dump>.json appears by rename when the
// dump is whole, so a dump with a sidecar of the same size is a finished one.
#include "offheap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define STATISTICS_BYTES (1 << 20)   // a statistics file is put aside at this size; one is kept aside

static char buffer[4096];

static bool has_room(struct agent *agent) {
    struct statvfs volume;
    if (statvfs(agent->spool.directory, &volume) < 0) {
        agent_problem(agent, "spool %s: %s", agent->spool.directory, strerror(errno));
        return false;
    }
    int64_t room = (int64_t)volume.f_bavail * (int64_t)volume.f_frsize;
    if (room - agent->last.size >= agent->config.minimum_free)
        return true;
    agent_problem(agent, "spool %s: %" PRId64 " bytes free, a dump of %" PRId64 " must leave %" PRId64,
                  agent->spool.directory, room, agent->last.size, agent->config.minimum_free);
    return false;
}

// Whether the dump is whole, and what its first lines say: "heap_v2/<interval>", "  t*: <objects>: <bytes> [".
static bool inspect(struct dump *dump) {
    struct owned file;
    struct stat status;
    char head[256], last = 0;
    if (!owned_take(&file, open(dump->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)))
        return false;
    bool fine = fstat(file.fd, &status) == 0 && status.st_size > 0 && pread(file.fd, &last, 1, status.st_size - 1) == 1;
    ssize_t length = fine ? pread(file.fd, head, sizeof head - 1, 0) : -1;
    owned_close(&file);
    if (!fine || length <= 0)
        return false;
    head[length] = '\0';
    dump->size = status.st_size;
    dump->time = (int64_t)status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1000000;
    dump->totals = sscanf(head, "heap_v2/%" SCNu64 "\n t*: %" SCNu64 ": %" SCNu64 " [", &dump->sample_interval,
                          &dump->objects, &dump->bytes) == 3;
    return last == '\n';
}

static bool write_sidecar(struct agent *agent, const char *reason, const struct dump *dump) {
    char path[sizeof dump->path + 8], partial[sizeof path + 8];
    struct owned file;
    struct json json;
    bool active = false;
    snprintf(path, sizeof path, "%s.json", dump->path);
    snprintf(partial, sizeof partial, "%s.part", path);
    if (!owned_take(&file, open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)))
        return false;
    json_start(&json, buffer, sizeof buffer, &file);
    json_open(&json, NULL, '{');
    json_signed(&json, "format", 1);
    json_string(&json, "agent", AGENT_VERSION);
    json_string(&json, "dump", strrchr(dump->path, '/') + 1);
    json_signed(&json, "size", dump->size);
    json_seconds(&json, "time", dump->time);
    json_seconds(&json, "duration", dump->milliseconds);
    json_string(&json, "reason", reason);
    json_string(&json, "unit", *agent->config.unit ? agent->config.unit : NULL);
    facts_process(&json, true);
    json_string(&json, "unwinder", unwinder_names[agent->unwinder]);
    je_get_bool("prof.active", &active);
    json_bool(&json, "active", active);
    if (agent->active_since)
        json_seconds(&json, "active_since", agent->active_since);
    else
        json_null(&json, "active_since");
    facts_jemalloc(&json, &agent->config);
    facts_memory(&json);
    facts_images(&json);
    json_close(&json, '}');
    bool written = json_finish(&json);
    owned_close(&file);
    if (written && rename(partial, path) == 0)
        return true;
    unlink(partial);
    return false;
}

bool dump_take(struct agent *agent, const char *reason, struct dump *dump) {
    char name[NAME_MAX + 1];
    int64_t began = facts_monotonic(), not_before = facts_now() - 20;   // files are stamped by a coarser clock
    *dump = (struct dump){.size = 0};
    agent->dumps_failed++;   // until it is a success
    if (!*agent->spool.directory) {
        agent_problem(agent, "prof_prefix in MALLOC_CONF is not an absolute path");
        return false;
    }
    if (!has_room(agent))
        return false;
    bool written = je_dump();
    bool found = spool_newest(&agent->spool, agent->pid, not_before, name, sizeof name);
    if (found) {
        snprintf(dump->path, sizeof dump->path, "%s/%s", agent->spool.directory, name);
        found = strcmp(dump->path, agent->last.path) != 0;
    }
    dump->milliseconds = facts_monotonic() - began;
    if (!written || !found || !inspect(dump)) {
        if (found)
            unlink(dump->path);   // what was written of it
        agent_problem(agent, "jemalloc could not write a dump into %s", agent->spool.directory);
        spool_thin(&agent->spool, agent->pid, agent->config.keep_files, agent->config.keep_bytes);
        return false;
    }
    agent->dumps_failed--;
    agent->dumps_written++;
    if (!write_sidecar(agent, reason, dump))
        agent_problem(agent, "cannot write %s.json", dump->path);
    agent->last = *dump;
    spool_thin(&agent->spool, agent->pid, agent->config.keep_files, agent->config.keep_bytes);
    return true;
}

// One line of memory statistics behind the others of this process: <prefix>.<pid>.stats.jsonl
void stats_append(struct agent *agent) {
    char path[sizeof agent->spool.directory + sizeof agent->spool.base + 32], aside[sizeof path + 8];
    struct owned file;
    struct stat status;
    struct json json;
    if (!*agent->spool.directory)
        return;
    snprintf(path, sizeof path, "%s/%s.%d.stats.jsonl", agent->spool.directory, agent->spool.base, (int)agent->pid);
    snprintf(aside, sizeof aside, "%s.1", path);
    if (stat(path, &status) == 0 && status.st_size > STATISTICS_BYTES)
        rename(path, aside);
    if (!owned_take(&file, open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600))) {
        agent_problem(agent, "cannot write %s: %s", path, strerror(errno));
        return;
    }
    off_t before = lseek(file.fd, 0, SEEK_END);
    json_start(&json, buffer, sizeof buffer, &file);
    json_open(&json, NULL, '{');
    json_seconds(&json, "time", facts_now());
    facts_memory(&json);
    json_close(&json, '}');
    if (!json_finish(&json)) {
        agent_problem(agent, "cannot write %s", path);
        if (owned_still(&file) && before >= 0)
            (void)!ftruncate(file.fd, before);   // no half line on a full disk
    }
    owned_close(&file);
}
