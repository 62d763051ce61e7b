// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A dump and its sidecar. jemalloc writes with its locks held: if a disk hangs meanwhile, the service's threads cannot
// start, end, fork or free what was sampled. So it writes to memory, and we copy that to the spool with no lock held.
//
// We make the file, which must be new: neither a dump of an earlier start nor what a link means can be overwritten.
// <dump>.json appears by rename when the dump is whole, so a dump with a sidecar of the same size is a finished one.
#define _GNU_SOURCE
#include "dump.h"

#include "clock.h"
#include "descriptors.h"
#include "feeder.h"
#include "images.h"
#include "json.h"
#include "ledger.h"
#include "mallctl.h"
#include "others.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEMORY (64 << 20)        // bytes that a dump may take until it is copied
#define MFD_NOEXEC_SEAL 8U       // memfd_create(2); before Linux 6.3 there is no such flag
#define TRIES 1000   // names that may be taken; none is, unless a clock was set back or somebody else writes here

static char buffer[4096];

// What may be taken of memory: near its limit, what the service is about to be killed for must not be the dump.
static int64_t most_memory(void) {
    int64_t left = facts_memory_left();
    return left < 0 ? INT64_MAX : left / 2;
}

// Whether a dump can go to memory first. The file's pages are no such danger, since the kernel takes them back.
static bool fits_into_memory(const struct dumps *dumps) {
    int64_t expected = 2 * dumps->last.size;
    return expected <= MEMORY && expected <= most_memory();
}

static bool copy(const struct owned *from, const struct owned *to) {
    static char chunk[65536];
    ssize_t length;
    off_t at = 0;
    while ((length = pread(from->fd, chunk, sizeof chunk, at)) > 0) {
        for (ssize_t done = 0, written; done < length; done += written)
            if (!owned_still(to) || (written = write(to->fd, chunk + done, (size_t)(length - done))) < 0)
                return false;
        at += length;
    }
    return length == 0;
}

static bool has_room(const struct dumps *dumps, int64_t size) {
    struct statvfs volume;
    if (statvfs(dumps->spool->directory, &volume) < 0) {
        problem_note(dumps->problem, "spool %s: %s", dumps->spool->directory, strerror(errno));
        return false;
    }
    int64_t room = (int64_t)volume.f_bavail * (int64_t)volume.f_frsize;
    if (room - size >= dumps->config->minimum_free)
        return true;
    problem_note(dumps->problem, "spool %s has %" PRId64 " bytes free; a dump of %" PRId64 " bytes must leave %" PRId64,
                 dumps->spool->directory, room, size, dumps->config->minimum_free);
    return false;
}

// Makes the file of the next dump and names it in `dump`.
static bool create(struct dumps *dumps, struct dump *dump, struct owned *file) {
    int fd = -1;
    errno = EEXIST;
    for (int tried = 0; fd < 0 && errno == EEXIST && tried < TRIES; tried++) {
        int64_t number = dumps->next++;
        snprintf(dump->path, sizeof dump->path, "%s/%s.%" PRId64 ".m%" PRId64 ".heap", dumps->spool->directory,
                 dumps->spool->process, number, number);
        fd = open(dump->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    return owned_take(file, fd);
}

// By what path jemalloc shall open the file that we have open, whatever has its name by now; NULL if none is safe. Without
// /proc only the name is left, where whoever else the spool belongs to, or admits, could put a link.
static const char *path_of(const struct owned *file, const struct dumps *dumps, const char *name) {
    static char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/thread-self/fd/%d", file->fd);
    if (stat(path, &status) == 0 && status.st_ino == file->inode && status.st_dev == file->device)
        return path;
    bool own = stat(dumps->spool->directory, &status) == 0 && status.st_uid == geteuid() && !(status.st_mode & S_IWGRP);
    return own ? name : NULL;
}

// Under a filter of system calls that may kill we try none that it need not list.
static bool create_in_memory(const struct dumps *dumps, struct owned *memory) {
    memory->fd = -1;
    if (!descriptors_are_private() || !fits_into_memory(dumps))
        return false;
    long fd = syscall(SYS_memfd_create, "offheap-dump", 1U /* MFD_CLOEXEC */ | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = syscall(SYS_memfd_create, "offheap-dump", 1U);
    if (!owned_take(memory, (int)fd))
        return false;
    if (!path_of(memory, dumps, NULL))
        owned_close(memory);
    return memory->fd >= 0;
}

// jemalloc copies the maps of the main thread, which has none once it has ended.
static bool add_maps(const struct owned *file) {
    static const char border[] = "\nMAPPED_LIBRARIES:\n";
    char end[sizeof border - 1];
    off_t size = owned_still(file) ? lseek(file->fd, 0, SEEK_END) : -1;
    return size < (off_t)sizeof end || pread(file->fd, end, sizeof end, size - (off_t)sizeof end) < (ssize_t)sizeof end ||
           memcmp(end, border, sizeof end) || ledger_write_maps(file);
}

// jemalloc overlooks that its last write was short, which may be at a line's end. Then no byte more can come, and errno says
// why. Under a filter of system calls that may kill we do not try one that it need not list.
static bool is_whole(const struct owned *file, off_t size, char last) {
    bool ended = last == '\n';
    if (ended && !descriptors_are_private())
        return true;
    bool more = lseek(file->fd, 0, SEEK_END) == size && write(file->fd, "", 1) == 1;
    return ended && more && ftruncate(file->fd, size) == 0;
}

// False if the dump is not whole. Else reads its header, "heap_v2/<interval>", "  t*: <objects>: <bytes> [".
static bool inspect(const struct owned *file, struct dump *dump) {
    struct stat status;
    char head[256], last = 0;
    if (!owned_still(file) || fstat(file->fd, &status) < 0 || status.st_size == 0 ||
        pread(file->fd, &last, 1, status.st_size - 1) != 1)
        return false;
    ssize_t length = pread(file->fd, head, sizeof head - 1, 0);
    if (length <= 0)
        return false;
    head[length] = '\0';
    dump->size = status.st_size;
    dump->totals = sscanf(head, "heap_v2/%" SCNu64 "\n t*: %" SCNu64 ": %" SCNu64 " [", &dump->sample_interval,
                          &dump->objects, &dump->bytes) == 3;
    return is_whole(file, status.st_size, last);
}

static bool write_sidecar(const struct dumps *dumps, const char *reason, const struct dump *dump) {
    char path[sizeof dump->path + 8], partial[sizeof path + 8];
    struct owned file;
    struct json json;
    snprintf(path, sizeof path, "%s.json", dump->path);
    snprintf(partial, sizeof partial, "%s.part", path);
    unlink(partial);   // whatever lies there: the spool may belong to workers, and this process be root
    if (!owned_take(&file, open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)))
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
    if (feeder_is_sampler())
        feeder_describe(&json);
    json_bool(&json, "active", feeder_active());
    if (dumps->facts->active_since)
        json_seconds(&json, "active_since", dumps->facts->active_since);
    else
        json_null(&json, "active_since");
    facts_jemalloc(&json, dumps->config->malloc_conf);
    facts_memory(&json);
    others_list(&json, dumps->config);
    images_list(&json);
    json_close(&json, '}');
    bool written = json_finish(&json);
    owned_close(&file);
    if (written && rename(partial, path) == 0)
        return true;
    unlink(partial);
    return false;
}

// Has a whole dump written into a file of ours; `name` is that file's.
static bool write_to(const struct dumps *dumps, struct owned *file, const char *name, struct dump *dump) {
    int64_t began = clock_monotonic();
    bool own = feeder_is_sampler();
    const char *path = own ? "" : path_of(file, dumps, name);
    if (!path) {
        problem_note(dumps->problem, "spool %s is another user's, who could redirect a dump, since this process sees no /proc",
                     dumps->spool->directory);
        return false;
    }
    errno = 0;
    if (!(own ? ledger_dump(file, most_memory()) : je_dump(path) && add_maps(file)) || !inspect(file, dump)) {
        const char *why = own && errno == ENOMEM ? "too little memory is left" : errno ? strerror(errno) : "it is not whole";
        problem_note(dumps->problem, "%s could not write a dump into %s: %s", own ? "the sampler" : "jemalloc",
                     dumps->spool->directory, why);
        return false;
    }
    dump->milliseconds = clock_monotonic() - began;
    dump->time = clock_now();
    return true;
}

// From memory, if it is there, else from jemalloc.
static bool write_to_spool(struct dumps *dumps, const struct owned *memory, struct dump *dump) {
    struct owned file;
    if (!has_room(dumps, memory->fd >= 0 ? dump->size : dumps->last.size))
        return false;
    if (!create(dumps, dump, &file)) {
        problem_note(dumps->problem, "cannot make %s: %s", dump->path, strerror(errno));
        return false;
    }
    bool whole = true;
    if (memory->fd < 0) {
        whole = write_to(dumps, &file, dump->path, dump);
    } else if (!copy(memory, &file)) {
        whole = false;
        problem_note(dumps->problem, "could not write a dump into %s: %s", dumps->spool->directory, strerror(errno));
    }
    owned_close(&file);
    if (!whole)
        unlink(dump->path);   // the part that was written
    return whole;
}

bool dump_take(struct dumps *dumps, const char *reason) {
    struct dump dump = {.size = 0};
    struct owned memory;
    dumps->failed++;   // until it succeeds
    if (!*dumps->spool->directory) {
        problem_note(dumps->problem, "the prefix of its dumps is not an absolute path, or too long");
        return false;
    }
    spool_as_owner(dumps->spool);
    bool whole = !create_in_memory(dumps, &memory) || write_to(dumps, &memory, NULL, &dump);
    whole = whole && write_to_spool(dumps, &memory, &dump);
    owned_close(&memory);
    if (whole) {
        dumps->failed--;
        dumps->written++;
        if (!ledger_write(dump.path, most_memory()))
            problem_note(dumps->problem, "cannot write %s.lives: %s", dump.path, strerror(errno));
        if (dumps->look && !holders_write(dump.path, dumps->look, &dumps->told))
            problem_note(dumps->problem, "cannot write %s.holders: %s", dump.path, strerror(errno));
        if (!write_sidecar(dumps, reason, &dump))
            problem_note(dumps->problem, "cannot write %s.json: %s", dump.path, strerror(errno));
        dumps->last = dump;
    }
    spool_thin(dumps->spool, dumps->config->keep_files, dumps->config->keep_bytes);
    return whole;
}
