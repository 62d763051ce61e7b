// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A dump and its sidecar. jemalloc names the dump and writes it in place; <dump>.json appears by rename when the
// dump is whole, so a dump with a sidecar of the same size is a finished one.
#include "dump.h"

#include "clock.h"
#include "descriptors.h"
#include "images.h"
#include "json.h"
#include "mallctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static char buffer[4096];

static bool has_room(const struct dumps *dumps) {
    struct statvfs volume;
    if (statvfs(dumps->spool->directory, &volume) < 0) {
        problem_note(dumps->problem, "spool %s: %s", dumps->spool->directory, strerror(errno));
        return false;
    }
    int64_t room = (int64_t)volume.f_bavail * (int64_t)volume.f_frsize;
    if (room - dumps->last.size >= dumps->config->minimum_free)
        return true;
    problem_note(dumps->problem, "spool %s has %" PRId64 " bytes free; a dump of %" PRId64 " bytes must leave %" PRId64,
                 dumps->spool->directory, room, dumps->last.size, dumps->config->minimum_free);
    return false;
}

// False if the dump is not whole. Else reads its header, "heap_v2/<interval>", "  t*: <objects>: <bytes> [".
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
    dump->time = clock_milliseconds(status.st_mtim);
    dump->totals = sscanf(head, "heap_v2/%" SCNu64 "\n t*: %" SCNu64 ": %" SCNu64 " [", &dump->sample_interval,
                          &dump->objects, &dump->bytes) == 3;
    return last == '\n';
}

static bool write_sidecar(const struct dumps *dumps, const char *reason, const struct dump *dump) {
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
    json_string(&json, "unit", *dumps->config->unit ? dumps->config->unit : NULL);
    facts_process(&json, true);
    json_string(&json, "unwinder", unwinder_names[dumps->facts->unwinder]);
    je_get_bool("prof.active", &active);
    json_bool(&json, "active", active);
    if (dumps->facts->active_since)
        json_seconds(&json, "active_since", dumps->facts->active_since);
    else
        json_null(&json, "active_since");
    facts_jemalloc(&json, dumps->config->malloc_conf);
    facts_memory(&json);
    images_list(&json);
    json_close(&json, '}');
    bool written = json_finish(&json);
    owned_close(&file);
    if (written && rename(partial, path) == 0)
        return true;
    unlink(partial);
    return false;
}

bool dump_take(struct dumps *dumps, const char *reason) {
    struct dump dump = {.size = 0};
    char name[NAME_MAX + 1];
    int64_t began = clock_monotonic(), not_before = clock_of_files();
    dumps->failed++;   // until it succeeds
    if (!*dumps->spool->directory) {
        problem_note(dumps->problem, "prof_prefix in MALLOC_CONF is not an absolute path");
        return false;
    }
    if (!has_room(dumps))
        return false;
    bool written = je_dump();
    bool found = spool_newest(dumps->spool, not_before, name, sizeof name);
    if (found) {
        snprintf(dump.path, sizeof dump.path, "%s/%s", dumps->spool->directory, name);
        found = strcmp(dump.path, dumps->last.path) != 0;
    }
    dump.milliseconds = clock_monotonic() - began;
    if (!written || !found || !inspect(&dump)) {
        if (found)
            unlink(dump.path);   // the part that was written
        problem_note(dumps->problem, "jemalloc could not write a dump into %s", dumps->spool->directory);
        spool_thin(dumps->spool, dumps->config->keep_files, dumps->config->keep_bytes);
        return false;
    }
    dumps->failed--;
    dumps->written++;
    if (!write_sidecar(dumps, reason, &dump))
        problem_note(dumps->problem, "cannot write %s.json", dump.path);
    dumps->last = dump;
    spool_thin(dumps->spool, dumps->config->keep_files, dumps->config->keep_bytes);
    return true;
}
