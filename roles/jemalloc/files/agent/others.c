// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A server with workers may keep its leak in processes that nobody profiles, and a dump of the first one looks healthy.
// So each dump notes how much memory the others of the control group hold, without files and shared memory. One that
// listens beside ours has dumps of its own; a file is no proof of that, since a program that was replaced by another one
// (exec) leaves its socket. Such files are removed. Formats: cgroups(7), statm, comm and exe in proc(5).
#include "others.h"

#include "descriptors.h"
#include "facts.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 4096   // processes that are looked at
#define NAMED 4     // the largest are named

struct other {
    int pid, living;   // the latter: a thread of it that has not ended
    int64_t resident;
    char name[32];
};

static int64_t resident_of(int task) {
    char path[64], statm[256];
    snprintf(path, sizeof path, "/proc/%d/statm", task);
    return owned_slurp(path, statm, sizeof statm) > 0 ? facts_resident(statm) : -1;
}

static void measure_thread(void *measured, const struct owned *directory, const char *name) {
    struct other *other = measured;
    (void)directory;
    if (other->resident <= 0 && atoi(name) > 0) {
        other->living = atoi(name);
        other->resident = resident_of(other->living);
    }
}

// False if it has ended. Of a main thread that has ended (pthread_exit) no memory is told, but of the others.
static bool measure(struct other *other) {
    char path[64];
    other->living = other->pid;
    other->resident = resident_of(other->pid);
    snprintf(path, sizeof path, "/proc/%d/task", other->pid);
    if (other->resident == 0)
        (void)owned_list(path, measure_thread, other);
    return other->resident >= 0;
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
    static char executable[PATH_MAX];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", other->pid);
    ssize_t length = owned_slurp(path, other->name, sizeof other->name);
    json_open(json, NULL, '{');
    json_signed(json, "pid", other->pid);
    if (length > 0)
        json_bytes(json, "name", other->name, strcspn(other->name, "\n"));
    else
        json_null(json, "name");
    snprintf(path, sizeof path, "/proc/%d/exe", other->living);
    length = readlink(path, executable, sizeof executable);
    if (length > 0)
        json_bytes(json, "exe", executable, (size_t)length);
    else
        json_null(json, "exe");   // a process of another user
    json_signed(json, "rss", other->resident);
    json_close(json, '}');
}

// 0, or an error number. One that is too busy to accept (EAGAIN) is there.
static int try(const struct sockaddr_un *address, socklen_t size) {
    struct owned probe;
    if (!owned_take(&probe, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)))
        return errno;
    int error = connect(probe.fd, (const struct sockaddr *)address, size) < 0 && errno != EAGAIN ? errno : 0;
    owned_close(&probe);
    return error;
}

// Removes a socket at which nobody listens.
static void remove_if_left(const char *path) {
    struct sockaddr_un address;
    struct owned directory;
    struct stat before, now;
    if (lstat(path, &before) < 0 || !S_ISSOCK(before.st_mode))
        return;
    bool left = owned_address(path, &address, &directory) && try(&address, sizeof address) == ECONNREFUSED;
    owned_close(&directory);
    if (left && lstat(path, &now) == 0 && now.st_ino == before.st_ino)
        unlink(path);
}

// A socket gets its name, without a dot in front, once it listens.
static void look_at_socket(void *context, const struct owned *directory, const char *name) {
    static char path[PATH_MAX + 256];
    const struct config *config = context;
    const char *digits = name + (*name == '.');
    int pid = atoi(digits);
    (void)directory;
    if (pid <= 0 || pid == getpid() || strcmp(digits + strspn(digits, "0123456789"), ".sock") ||
        (*name == '.' && (kill(pid, 0) == 0 || errno != ESRCH)))
        return;
    snprintf(path, sizeof path, "%s/%s", config->socket_directory, name);
    remove_if_left(path);
}

// To be asked once the sockets that were left are removed.
static bool has_agent(const struct config *config, int pid) {
    static char path[PATH_MAX + 16];
    struct sockaddr_un address;
    snprintf(path, sizeof path, "%s/%d.sock", config->socket_directory, pid);
    if (access(path, F_OK) == 0)
        return true;
    socklen_t size = config_abstract_address(config, pid, &address);
    return try(&address, size) == 0;
}

void others_list(struct json *json, const struct config *config) {
    static char group[PATH_MAX], path[2 * PATH_MAX], processes[32 * 1024];
    struct other largest[NAMED] = {{.pid = 0}}, other;
    int64_t count = 0, resident = 0;
    owned_list(config->socket_directory, look_at_socket, (void *)config);
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
