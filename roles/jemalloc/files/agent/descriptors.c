// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service may close every descriptor (daemons do): ours are then gone or, worse, soon mean files of the service. It
// may run without stdin, stdout and stderr, so that the next file opened becomes one of them. Its children inherit
// what we have open. None of this matters once the agent's thread has a descriptor table of its own:
// unshare(CLONE_FILES), which needs no privilege. With CLONE_FS, the service's chroot, chdir and umask do not reach us
// either, nor our umask the service. One thing is lost then: what a process has asked of a message queue (mq_notify(3))
// the kernel forgets when the process closes the queue in any table. So, where one is open, the table stays shared.
//
// A seccomp filter may kill the process for a system call that it does not list. Where a filter is in force that nobody
// vouches for we do not try: the table stays shared, our descriptors get high numbers, and before each use we check that
// the descriptor still means the file that it was opened for.
#define _GNU_SOURCE
#include "descriptors.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

static bool separate;
static long filters;   // of system calls, that the process had at its start

const char *owned_process(const char *name) {
    static char path[64];
    char byte;
    bool has_main = readlink("/proc/self/exe", &byte, 1) > 0;
    snprintf(path, sizeof path, "/proc/%s/%s", has_main ? "self" : "thread-self", name);
    return path;
}

bool owned_take(struct owned *owned, int fd) {
    struct stat status;
    *owned = (struct owned){.fd = -1};
    if (fd < 0 || fstat(fd, &status) < 0)
        return false;
    if (!separate && fd < 512) {
        struct rlimit limit;
        int high = -1;
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 64)
            high = fcntl(fd, F_DUPFD_CLOEXEC, limit.rlim_cur > 1024 ? 960 : (int)limit.rlim_cur - 32);
        if (high >= 0) {
            owned_close(&(struct owned){.fd = fd, .device = status.st_dev, .inode = status.st_ino});
            fd = high;
        }
    }
    *owned = (struct owned){.fd = fd, .device = status.st_dev, .inode = status.st_ino};
    return owned_still(owned);
}

bool owned_still(const struct owned *owned) {
    struct stat status;
    if (owned->fd < 0)
        return false;
    return separate ||
           (fstat(owned->fd, &status) == 0 && status.st_dev == owned->device && status.st_ino == owned->inode);
}

void owned_close(struct owned *owned) {
    if (owned_still(owned))
        close(owned->fd);
    owned->fd = -1;
}

ssize_t owned_slurp(const char *path, char *text, size_t size) {
    struct owned file;
    size_t length = 0;
    ssize_t count = -1;
    if (!owned_take(&file, open(path, O_RDONLY | O_CLOEXEC)))
        return -1;
    while (length < size - 1 && owned_still(&file) && (count = read(file.fd, text + length, size - 1 - length)) > 0)
        length += (size_t)count;
    owned_close(&file);
    text[length] = '\0';
    return count < 0 ? -1 : (ssize_t)length;
}

int64_t owned_stat(const char *path, int field) {
    char text[2048], *at = owned_slurp(path, text, sizeof text) > 0 ? strrchr(text, ')') : NULL;
    for (int number = 2; at && number < field; number++)   // the name, field 2, may hold anything
        at = strchr(at + 1, ' ');
    return at ? strtoll(at + 1, NULL, 10) : -1;
}

// What getdents64(2) writes.
struct file {
    uint64_t inode, offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

bool owned_list(const char *path, void (*visit)(void *context, const struct owned *directory, const char *name),
                void *context) {
    static _Alignas(struct file) char buffer[32768];
    struct owned directory;
    long length = -1;
    if (!owned_take(&directory, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)))
        return false;
    while (owned_still(&directory) && (length = syscall(SYS_getdents64, directory.fd, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < length; at += ((struct file *)(buffer + at))->length)
            visit(context, &directory, ((struct file *)(buffer + at))->name);
    owned_close(&directory);
    return length == 0;
}

// sun_path has 108 bytes, a unit's name up to 255.
bool owned_address(const char *path, struct sockaddr_un *address, struct owned *directory) {
    const char *name = strrchr(path, '/') + 1;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    *directory = (struct owned){.fd = -1};
    if (strlen(path) < sizeof address->sun_path) {
        strcpy(address->sun_path, path);
        return true;
    }
    char parent[PATH_MAX];
    if (name - path >= (ptrdiff_t)sizeof parent)
        return false;
    snprintf(parent, sizeof parent, "%.*s", (int)(name - path), path);
    if (!owned_take(directory, open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC)))
        return false;
    return snprintf(address->sun_path, sizeof address->sun_path, "/proc/thread-self/fd/%d/%s", directory->fd, name) <
           (int)sizeof address->sun_path;
}

// How many filters of system calls are in force; -1: some are, but this kernel (before 5.9) does not say how many.
static long count_filters(void) {
    static char status[4096];
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0)
        return 0;
    const char *line = owned_slurp("/proc/thread-self/status", status, sizeof status) > 0
                           ? strstr(status, "\nSeccomp_filters:")
                           : NULL;
    return line ? strtol(line + strlen("\nSeccomp_filters:"), NULL, 10) : -1;
}

void descriptors_remember_filters(void) {
    filters = count_filters();
}

static void look_for_queue(void *found, const struct owned *directory, const char *name) {
    (void)directory;
    if (syscall(SYS_mq_getsetattr, (int)strtol(name, NULL, 10), NULL, NULL) == 0)
        *(bool *)found = true;
}

bool descriptors_isolate(bool may_unshare) {
    bool queue = false;
    separate = false;
    long now = count_filters();
    if (now != 0 && !(may_unshare && now > 0 && now == filters))
        return false;
    if (now == 0)   // a filter need not list that call
        (void)owned_list("/proc/thread-self/fd", look_for_queue, &queue);
    if (queue)
        return false;
    if (syscall(SYS_unshare, CLONE_FILES | CLONE_FS) < 0)
        return false;
    // Our copies would keep the service's files open: whoever waits for the end of a pipe would wait for ever.
    // Stderr stays until descriptors_silence, for a problem at the start.
    if (syscall(SYS_close_range, 3U, ~0U, 0U) < 0) {
        struct rlimit limit;
        int end = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536 ? (int)limit.rlim_cur : 65536;
        for (int fd = 3; fd < end; fd++)
            close(fd);
    }
    close(0);
    close(1);
    if (open("/dev/null", O_RDWR) == 0)
        (void)!dup(0);
    if (fcntl(2, F_GETFD) < 0)
        dup2(0, 2);
    umask(077);
    (void)!chdir("/");
    separate = true;
    return true;
}

bool descriptors_are_private(void) {
    return separate;
}

void descriptors_silence(void) {
    if (separate)
        dup2(0, 2);
}
