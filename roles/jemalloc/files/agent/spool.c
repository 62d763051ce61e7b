// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Finds the dumps in the spool, and removes some when they exceed its budget. All processes of a unit, those of earlier
// starts too, share one spool and one budget.
//
// The budget of files is that of one process; where more live, each may have SHARE, or their dumps would push one another
// out before a verdict on any is possible. The budget of bytes stays that of all.
//
// Each process keeps its first dump, its newest and, between them, dumps at ages that grow by a factor, so that both
// an hour and a month of growth can be seen: the process with the most dumps loses the one whose neighbours' ages are
// nearest to each other. Once every process is down to two, the oldest dump goes first. Our own newest always stays,
// our own first as long as it can.
#define _GNU_SOURCE
#include "spool.h"

#include "clock.h"
#include "descriptors.h"
#include "mallctl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 1024
#define STATISTICS 16
#define SHARE 8       // dumps of a process
#define YOUNG 60000   // milliseconds for which another process may still be writing a dump

struct entry {
    int64_t time, size;   // milliseconds; bytes
    uint64_t sequence;
    size_t process;       // so much of the name says which process wrote it
    char name[128];
};

static struct entry entries[ENTRIES];
static int count;
static bool more;         // dumps than `entries` holds
static int statistics;    // files
static char oldest_statistics[128];
static time_t oldest_time;

bool spool_find(struct spool *spool, const char *prefix, const char *start, pid_t pid) {
    const char *slash = prefix ? strrchr(prefix, '/') : NULL;
    char own[sizeof spool->directory + sizeof spool->base + 32];
    *spool = (struct spool){.owner = (uid_t)-1};
    if (!slash || *prefix != '/' || (size_t)(slash - prefix) >= sizeof spool->directory ||
        strlen(slash + 1) > sizeof spool->base - 1 ||
        snprintf(spool->process, sizeof spool->process, "%s.%s.%d", slash + 1, start, (int)pid) >=
            (int)sizeof spool->process)
        return false;
    memcpy(spool->directory, prefix, (size_t)(slash - prefix));
    if (slash == prefix)
        *spool->directory = '/';
    strcpy(spool->base, slash + 1);
    struct stat status;
    spool->owner = stat(spool->directory, &status) == 0 ? status.st_uid : (uid_t)-1;
    snprintf(own, sizeof own, "%s.%s", prefix, start);
    je_set_prefix(own);   // else, before jemalloc 5.3.0, its own dumps can replace those of an earlier start
    return true;
}

// A service may be another user for a time (seteuid), and libc has all its threads follow. What owns the spool it can be
// again whenever it likes, and this thread already is, for files alone, until the service's next change.
void spool_as_owner(const struct spool *spool) {
    uid_t real, effective, saved;
    if (descriptors_are_private() && getresuid(&real, &effective, &saved) == 0 && spool->owner != effective &&
        (spool->owner == real || spool->owner == saved))
        setfsuid(spool->owner);
}

// <base>[.<start>].<pid>.<seq>.{i|m|u}<n>.heap or <base>[.<start>].<pid>.<seq>.f.heap; with prof_pid_namespace one more
// number in front of the pid. The start is what facts_start says, or 32 digits of a boot.
static bool parse(const char *base, const char *name, struct entry *entry) {
    size_t length = strlen(base);
    int found = 0;
    if (strncmp(name, base, length) || name[length] != '.')
        return false;
    char *at = (char *)name + length + 1;
    size_t start = strspn(at, "0123456789abcdef-");
    if (at[start] == '.' && (start == 32 || memchr(at, '-', start)))
        at += start + 1;
    while (*at >= '0' && *at <= '9' && found < 3) {
        entry->process = (size_t)(at - name) - 1;
        entry->sequence = strtoull(at, &at, 10);
        found++;
        if (*at++ != '.')
            return false;
    }
    if (found < 2 || !strchr("imuf", *at) || !*at)
        return false;
    at++;
    at += strspn(at, "0123456789");
    return !strcmp(at, ".heap");
}

static int by_process(const struct entry *a, const struct entry *b) {
    size_t shorter = a->process < b->process ? a->process : b->process;
    int order = memcmp(a->name, b->name, shorter);
    return order ? order : a->process < b->process ? -1 : a->process > b->process;
}

static bool is_own(const struct spool *spool, const struct entry *entry) {
    return strlen(spool->process) == entry->process && !memcmp(spool->process, entry->name, entry->process);
}

// What lies beside a dump is written as a part first. A process that is killed meanwhile leaves it.
static bool is_left(const struct spool *spool, const struct owned *directory, const char *name) {
    struct stat status;
    size_t length = strlen(name);
    return !strncmp(name, spool->base, strlen(spool->base)) && strstr(name, ".heap.") &&
           !strcmp(name + length - strlen(".part"), ".part") &&
           fstatat(directory->fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           clock_now() - clock_milliseconds(status.st_mtim) > YOUNG;
}

static void add(void *context, const struct owned *directory, const char *name) {
    struct spool *spool = context;
    struct entry *entry = &entries[count];
    struct stat status;
    static const char *const counted[] = {".lives", ".holders"};
    char beside[sizeof entry->name + 16];
    if (is_left(spool, directory, name)) {
        char path[PATH_MAX + 256];
        snprintf(path, sizeof path, "%s/%s", spool->directory, name);
        unlink(path);
        return;
    }
    if (!strncmp(name, spool->base, strlen(spool->base)) && strstr(name, ".stats.jsonl")) {
        if (strlen(name) < sizeof oldest_statistics &&
            fstatat(directory->fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            (!statistics++ || status.st_mtim.tv_sec < oldest_time)) {
            oldest_time = status.st_mtim.tv_sec;
            strcpy(oldest_statistics, name);
        }
        return;
    }
    if (strlen(name) >= sizeof entry->name || !parse(spool->base, name, entry) ||
        fstatat(directory->fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(status.st_mode))
        return;
    if (count == ENTRIES - 1) {
        more = true;
        return;
    }
    strcpy(entry->name, name);
    entry->time = clock_milliseconds(status.st_mtim);
    // A sparse file takes less of the disk than it is long.
    entry->size = status.st_blocks * 512 < status.st_size ? status.st_blocks * 512 : status.st_size;
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++) {
        snprintf(beside, sizeof beside, "%s%s", name, counted[i]);
        if (fstatat(directory->fd, beside, &status, AT_SYMLINK_NOFOLLOW) == 0)
            entry->size += status.st_size;
    }
    spool->files++;
    spool->bytes += entry->size;
    count++;
}

// Fills `entries` with the dumps of the spool. False if it cannot be read.
static bool look(struct spool *spool) {
    count = 0;
    statistics = 0;
    more = false;
    spool->files = spool->bytes = 0;
    if (!owned_list(spool->directory, add, spool))
        return false;
    if (statistics > STATISTICS) {   // one is enough, since each dump comes by here
        char path[PATH_MAX + sizeof oldest_statistics];
        snprintf(path, sizeof path, "%s/%s", spool->directory, oldest_statistics);
        unlink(path);
    }
    return true;
}

static int by_process_and_time(const struct entry *a, const struct entry *b) {
    int order = by_process(a, b);
    if (order)
        return order;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    return a->sequence < b->sequence ? -1 : a->sequence > b->sequence;
}

static void discard(struct spool *spool, int index) {
    static const char *const companions[] = {"", ".json", ".lives", ".holders", ".map"};
    char path[PATH_MAX + sizeof entries->name + 16];
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++) {
        snprintf(path, sizeof path, "%s/%s%s", spool->directory, entries[index].name, companions[i]);
        unlink(path);
    }
    spool->files--;
    spool->bytes -= entries[index].size;
    memmove(&entries[index], &entries[index + 1], (size_t)(--count - index) * sizeof *entries);
}

// What is lost with entries[index]: the ratio of the ages around it. entries[last] is its process's newest.
static double loss(int last, int index) {
    int64_t newest = entries[last].time + 1000;
    return (double)(newest - entries[index - 1].time) / (double)(newest - entries[index + 1].time);
}

// The index of the dump to remove next, -1 if all must stay.
static int victim(const struct spool *spool, int64_t now) {
    int best = -1, best_size = 2, oldest = -1, first = -1;
    for (int from = 0, to; from < count; from = to) {
        for (to = from + 1; to < count && !by_process(&entries[to], &entries[from]); to++)
            ;
        bool own = is_own(spool, &entries[from]), young = !own && now - entries[to - 1].time < YOUNG;
        if (to - from > best_size) {
            int chosen = from + 1;
            for (int i = from + 2; i < to - 1; i++)
                if (loss(to - 1, i) < loss(to - 1, chosen))
                    chosen = i;
            best = chosen;
            best_size = to - from;
        }
        if (own && to - from == 2)
            first = from;
        if (!own && !(young && to - from == 1) &&
            (oldest < 0 || entries[from].time < entries[oldest].time))
            oldest = from;
    }
    return best >= 0 ? best : oldest >= 0 ? oldest : first;
}

// How many processes live that have dumps, and this one, whose first may be on its way; `entries` are sorted. The pid is
// the last number of the process's name.
static int64_t living(const struct spool *spool) {
    int64_t found = 1;
    for (int i = 0; i < count; i++) {
        if (is_own(spool, &entries[i]) || (i && !by_process(&entries[i], &entries[i - 1])))
            continue;
        size_t end = entries[i].process, at = end;
        while (at && entries[i].name[at - 1] != '.')
            at--;
        int pid = atoi(entries[i].name + at);
        found += pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
    }
    return found;
}

// In place: libc's sort may allocate.
static void sort(void) {
    for (int gap = count / 2; gap > 0; gap /= 2) {
        for (int i = gap; i < count; i++) {
            for (int at = i; at >= gap && by_process_and_time(&entries[at - gap], &entries[at]) > 0; at -= gap) {
                struct entry held = entries[at];
                entries[at] = entries[at - gap];
                entries[at - gap] = held;
            }
        }
    }
}

void spool_thin(struct spool *spool, int64_t keep_files, int64_t keep_bytes) {
    for (int round = 0; round < 64 && look(spool); round++) {
        bool flood = more;
        sort();
        int64_t shared = living(spool) * (keep_files < SHARE ? keep_files : SHARE);
        int64_t most = flood || shared > ENTRIES / 2 ? ENTRIES / 2 : shared < keep_files ? keep_files : shared;
        while (spool->files > most || (!flood && spool->bytes > keep_bytes)) {
            int index = victim(spool, clock_now());
            if (index < 0)
                return;
            discard(spool, index);
        }
        if (!flood)
            return;
    }
}
