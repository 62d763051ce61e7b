// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What a dump does not say itself: which process, which jemalloc with which options, how much memory. What cannot
// be read (a sandbox hides much of /proc) is null or absent, never a guess. Formats: proc(5), jemalloc(3).
#include "facts.h"

#include "clock.h"
#include "descriptors.h"
#include "mallctl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch[64 * 1024];

static ssize_t slurp(const char *path) {
    return owned_slurp(path, scratch, sizeof scratch);
}

static void start_time(struct json *json) {
    int64_t ticks = owned_stat("/proc/self/stat", 22);
    if (ticks < 0) {
        json_null(json, "start_ticks");
        json_null(json, "start_time");
        return;
    }
    int64_t age = clock_since_boot() - ticks * 1000 / sysconf(_SC_CLK_TCK);
    json_signed(json, "start_ticks", ticks);
    json_seconds(json, "start_time", clock_now() - age);
}

// Not the process's start time, which an exec does not change.
void facts_start(char *text, size_t size) {
    bool known = slurp("/proc/sys/kernel/random/boot_id") >= 8 && strspn(scratch, "0123456789abcdef") == 8;
    snprintf(text, size, "%.8s-%" PRId64, known ? scratch : "00000000", clock_since_boot());
}

// The process's group in the hierarchy whose controllers are these, between colons (cgroups(7)); NULL: there is none.
static const char *own_group(const char *controllers, int *length) {
    const char *line = slurp(owned_process("cgroup")) > 0 ? scratch : "", *end;
    for (; *line; line = end + (*end == '\n')) {
        const char *list = line + strcspn(line, ":\n"), *path = list + strlen(controllers);
        end = line + strcspn(line, "\n");
        if (!strncmp(list, controllers, strlen(controllers))) {
            *length = (int)(end - path);
            return path;
        }
    }
    return NULL;
}

bool facts_cgroup(char *path, size_t size) {
    int length;
    const char *group = own_group("::", &length);
    static const char *const roots[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    for (size_t i = 0; group && i < sizeof roots / sizeof *roots; i++) {
        int needed = snprintf(path, size, "%s%.*s/cgroup.events", roots[i], length, group);   // the root has none
        if (needed < (int)size && access(path, F_OK) == 0) {
            path[needed - (int)strlen("/cgroup.events")] = '\0';
            return true;
        }
    }
    return false;
}

// The number in a file, or behind a name in it; -1: there is none ("max" is none).
static int64_t number_in(const char *path, const char *name) {
    const char *at = slurp(path) > 0 ? strstr(scratch, name) : NULL;
    char *end;
    if (!at)
        return -1;
    int64_t number = strtoll(at + strlen(name), &end, 10);
    return end > at + strlen(name) ? number : -1;
}

// What a group leaves below its limit; -1: it has none. Formats: cgroup-v2.rst, cgroup-v1/memory.rst.
static int64_t left_in(const char *group) {
    static const char *const files[][3] = {
        {"memory.max", "memory.current", "\ninactive_file "},
        {"memory.limit_in_bytes", "memory.usage_in_bytes", "\ntotal_inactive_file "},
    };
    char path[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", group, files[i][0]);
        int64_t most = number_in(path, "");
        snprintf(path, sizeof path, "%s/%s", group, files[i][1]);
        int64_t used = number_in(path, "");
        if (most < 0 || used < 0)
            continue;
        snprintf(path, sizeof path, "%s/memory.stat", group);
        int64_t droppable = number_in(path, files[i][2]), left = most - used + (droppable > 0 ? droppable : 0);
        return left > 0 ? left : 0;
    }
    return -1;
}

// Files that the kernel can drop count as free, in a group as in MemAvailable (proc(5)). A slice above may have a limit.
int64_t facts_memory_left(void) {
    static const char *const hierarchies[][2] = {
        {"::", "/sys/fs/cgroup"}, {"::", "/sys/fs/cgroup/unified"}, {":memory:", "/sys/fs/cgroup/memory"},
    };
    char group[PATH_MAX];
    int length;
    int64_t left = number_in("/proc/meminfo", "\nMemAvailable:");
    if (left >= 0)
        left *= 1024;
    for (size_t i = 0; i < sizeof hierarchies / sizeof *hierarchies; i++) {
        const char *own = own_group(hierarchies[i][0], &length);
        if (!own || snprintf(group, sizeof group, "%s%.*s", hierarchies[i][1], length, own) >= (int)sizeof group)
            continue;
        for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
            *end = '\0';
            int64_t here = left_in(group);
            if (here >= 0 && (left < 0 || here < left))
                left = here;
        }
    }
    return left;
}

int64_t facts_resident(const char *statm) {
    long long size, present, shared;
    if (sscanf(statm, "%lld %lld %lld", &size, &present, &shared) != 3)
        return 0;
    return (present - shared) * sysconf(_SC_PAGESIZE);
}

// The number of the namespace in which our pid is one (pid_namespaces(7)); 0: it cannot be read.
static int64_t pid_namespace(void) {
    char link[64] = "";
    ssize_t length = readlink("/proc/self/ns/pid", link, sizeof link - 1);
    return length > 5 && !strncmp(link, "pid:[", 5) ? strtoll(link + 5, NULL, 10) : 0;
}

void facts_process(struct json *json, bool arguments) {
    char path[PATH_MAX];
    json_signed(json, "pid", getpid());
    json_signed(json, "pid_namespace", pid_namespace());
    start_time(json);
    if (slurp("/proc/sys/kernel/random/boot_id") > 0)
        json_bytes(json, "boot_id", scratch, strcspn(scratch, "\n"));
    else
        json_null(json, "boot_id");
    ssize_t length = readlink(owned_process("exe"), path, sizeof path);
    if (length > 0)
        json_bytes(json, "exe", path, (size_t)length);
    else
        json_null(json, "exe");
    if (!arguments)
        return;
    length = slurp(owned_process("cmdline"));
    if (length < 0) {
        json_null(json, "cmdline");
        return;
    }
    json_open(json, "cmdline", '[');
    for (ssize_t i = 0; i < length; i += (ssize_t)strlen(scratch + i) + 1)
        json_string(json, NULL, scratch + i);
    json_close(json, ']');
}

void facts_jemalloc(struct json *json, const char *malloc_conf) {
    static const char *const switches[] = {"prof_active", "prof_accum", "prof_final", "prof_gdump", "prof_leak",
                                           "prof_unbias", "prof_thread_active_init", "background_thread"};
    static const char *const numbers[] = {"lg_prof_sample", "lg_prof_interval", "dirty_decay_ms", "muzzy_decay_ms"};
    char name[64];
    bool value;
    size_t size;
    json_open(json, "jemalloc", '{');
    json_string(json, "version", je_get_string("version"));
    json_string(json, "malloc_conf", *malloc_conf ? malloc_conf : NULL);
    json_open(json, "options", '{');
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        snprintf(name, sizeof name, "opt.%s", switches[i]);
        if (je_get_bool(name, &value))
            json_bool(json, switches[i], value);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(name, sizeof name, "opt.%s", numbers[i]);
        if (je_get_size(name, &size))   // or ssize_t, where -1 is "off"
            json_signed(json, numbers[i], (ssize_t)size);
    }
    json_string(json, "prof_prefix", je_get_string("opt.prof_prefix"));
    json_close(json, '}');
    json_close(json, '}');
}

void facts_memory(struct json *json) {
    static const char *const fields[][2] = {{"VmRSS", "rss"},          {"RssAnon", "rss_anon"}, {"RssFile", "rss_file"},
                                            {"RssShmem", "rss_shmem"}, {"VmHWM", "rss_peak"},   {"VmSwap", "swap"},
                                            {"VmSize", "virtual"}};
    static const char *const statistics[] = {"allocated", "active", "metadata", "resident", "mapped", "retained"};
    char name[64];
    size_t size;
    json_open(json, "memory", '{');
    if (slurp(owned_process("status")) > 0) {
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            snprintf(name, sizeof name, "\n%s:", fields[i][0]);
            const char *line = strstr(scratch, name);
            if (line)
                json_signed(json, fields[i][1], strtoll(line + strlen(name), NULL, 10) * 1024);
        }
        const char *line = strstr(scratch, "\nThreads:");
        if (line)
            json_signed(json, "threads", strtoll(line + strlen("\nThreads:"), NULL, 10));
    }
    je_refresh_statistics();
    for (size_t i = 0; i < sizeof statistics / sizeof *statistics; i++) {
        snprintf(name, sizeof name, "stats.%s", statistics[i]);
        if (je_get_size(name, &size))
            json_unsigned(json, statistics[i], size);
    }
    int64_t left = facts_memory_left();
    if (left >= 0)
        json_signed(json, "left", left);
    json_close(json, '}');
}
