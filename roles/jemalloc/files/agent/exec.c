// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// nginx replaces its binary by an exec with an empty environment, pg_ctlcluster makes the environment of PostgreSQL
// anew. What follows would run unprofiled, without a word. So our variables are put back into an environment that has
// none of them, on the way to the service's executable: in the programs that start it, and when it starts itself again,
// or becomes a program that may (dovecot becomes doveconf, which becomes dovecot, each without an environment). Its
// children are left alone, as is an environment in which somebody has set LD_PRELOAD to something else. They would
// only start more slowly with two more libraries, so in a process with an agent ours leave the environment, unless
// workers are profiled too, or a variable was the unit's own before.
//
// These run between fork and exec, also after vfork, in the middle of anything: no malloc, no lock.
#define _GNU_SOURCE
#include "exec.h"

#include <dlfcn.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST 64             // variables of ours
#define LONGEST (64 << 10)  // bytes of them
#define VISIBLE __attribute__((visibility("default")))

static const char *ours[MOST];
static size_t count, used;
static char texts[LONGEST];
static char executable[PATH_MAX];
static bool only_executable;
static bool allocator_stays;   // so MALLOC_CONF is somebody else's
static pid_t self;
static void (*leave)(void);

static bool is_ours(const char *variable) {
    return !strncmp(variable, "LD_PRELOAD=", 11) || (!allocator_stays && !strncmp(variable, "MALLOC_CONF=", 12)) ||
           (!strncmp(variable, "OFFHEAP_", 8) && strncmp(variable, "OFFHEAP_OWNER=", 14));
}

static bool is_executable(const char *path) {
    struct stat one, other;
    return path && (!strcmp(path, executable) || (stat(path, &one) == 0 && stat(executable, &other) == 0 &&
                                                  one.st_dev == other.st_dev && one.st_ino == other.st_ino));
}

// How many pointers an environment with ours takes; 0 if ours are not to be added. A process that `becomes` the program
// is this one, or a child of it between fork and exec.
static size_t room_for(const char *path, char *const *environment, bool becomes) {
    size_t length = 0;
    if (!count || (only_executable && !(becomes && getpid() == self) && !is_executable(path)))
        return 0;
    for (; environment && environment[length]; length++)
        if (is_ours(environment[length]))
            return 0;
    return length + count + 1;
}

static char *const *with_ours(const char **room, char *const *environment) {
    size_t length = 0;
    for (; environment && environment[length]; length++)
        room[length] = environment[length];
    memcpy(room + length, ours, count * sizeof *ours);
    room[length + count] = NULL;
    return (char *const *)room;
}

// Gives `environment` ours, on the stack of the caller.
#define COMPLETE(path, environment, becomes)            \
    size_t size = room_for(path, environment, becomes); \
    const char *room[size + 1];                         \
    if (size)                                           \
        environment = with_ours(room, environment)

// What comes after us: libc's, if nobody else preloads one. Looked up at the start, since a child between fork and exec
// must not; only another library's constructor can call before that.
static struct {
    __typeof__(&execve) execve;
    __typeof__(&execvpe) execvpe;
    __typeof__(&fexecve) fexecve;
    __typeof__(&posix_spawn) posix_spawn, posix_spawnp;
} next;

void exec_prepare(void) {
    next.execve = (__typeof__(&execve))dlsym(RTLD_NEXT, "execve");
    next.execvpe = (__typeof__(&execvpe))dlsym(RTLD_NEXT, "execvpe");
    next.fexecve = (__typeof__(&fexecve))dlsym(RTLD_NEXT, "fexecve");
    next.posix_spawn = (__typeof__(&posix_spawn))dlsym(RTLD_NEXT, "posix_spawn");
    next.posix_spawnp = (__typeof__(&posix_spawn))dlsym(RTLD_NEXT, "posix_spawnp");
}

static void look_up(void) {
    if (!next.execve)
        exec_prepare();
}

VISIBLE int execve(const char *path, char *const arguments[], char *const environment[]) {
    look_up();
    if (leave)
        leave();
    COMPLETE(path, environment, true);
    return next.execve(path, arguments, environment);
}

VISIBLE int execvpe(const char *file, char *const arguments[], char *const environment[]) {
    look_up();
    if (leave)
        leave();
    COMPLETE(file, environment, true);
    return next.execvpe(file, arguments, environment);
}

VISIBLE int fexecve(int fd, char *const arguments[], char *const environment[]) {
    char path[32];
    look_up();
    if (leave)
        leave();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    COMPLETE(path, environment, true);
    return next.fexecve(fd, arguments, environment);
}

VISIBLE int execv(const char *path, char *const arguments[]) {
    return execve(path, arguments, environ);
}

VISIBLE int execvp(const char *file, char *const arguments[]) {
    return execvpe(file, arguments, environ);
}

// The words of a call that ends with NULL, on the stack of the caller.
#define ARGUMENTS(first, last)                                          \
    va_list list;                                                       \
    size_t words = 1;                                                   \
    va_start(list, first);                                              \
    for (const char *word = first; word; word = va_arg(list, char *))   \
        words++;                                                        \
    va_end(list);                                                       \
    char *arguments[words];                                             \
    va_start(list, first);                                              \
    arguments[0] = (char *)(uintptr_t)first;                            \
    for (size_t i = 1; i < words; i++)                                  \
        arguments[i] = va_arg(list, char *);                            \
    last;                                                               \
    va_end(list)

VISIBLE int execl(const char *path, const char *first, ...) {
    ARGUMENTS(first, (void)0);
    return execve(path, arguments, environ);
}

VISIBLE int execlp(const char *file, const char *first, ...) {
    ARGUMENTS(first, (void)0);
    return execvpe(file, arguments, environ);
}

VISIBLE int execle(const char *path, const char *first, ...) {
    ARGUMENTS(first, char *const *environment = va_arg(list, char *const *));
    return execve(path, arguments, environment);
}

VISIBLE int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    look_up();
    COMPLETE(path, environment, false);
    return next.posix_spawn(pid, path, actions, attributes, arguments, environment);
}

VISIBLE int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                         const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    look_up();
    COMPLETE(file, environment, false);
    return next.posix_spawnp(pid, file, actions, attributes, arguments, environment);
}

void exec_remember(const char *path) {
    if (strlen(path) >= sizeof executable)
        return;
    strcpy(executable, path);
    self = getpid();
    const char *prefix = getenv("OFFHEAP_PREFIX");
    allocator_stays = prefix && *prefix;
    for (char **at = environ; at && *at; at++) {
        size_t size = strlen(*at) + 1;
        if (!is_ours(*at) || count == MOST || size > sizeof texts - used)
            continue;
        memcpy(texts + used, *at, size);
        ours[count++] = texts + used;
        used += size;
    }
}

void exec_is_profiled(void) {
    only_executable = true;
}

void exec_before(void (*last)(void)) {
    leave = last;
}

void exec_add_first(char *variable) {
    size_t length = 0, name = (size_t)(strchr(variable, '=') + 1 - variable);
    while (environ && environ[length])
        length++;
    char **longer = malloc((length + 2) * sizeof *longer), **to = longer;
    if (!longer)
        return;
    *to++ = variable;
    for (size_t i = 0; i < length; i++)
        if (strncmp(environ[i], variable, name))
            *to++ = environ[i];
    *to = NULL;
    environ = longer;
}

void exec_leave_environment(void) {
    char **to = environ;
    for (char **from = environ; from && *from; from++)
        if (!is_ours(*from))
            *to++ = *from;
    if (to)
        *to = NULL;
}
