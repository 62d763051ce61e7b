// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A thread that waits in a system call shows its stack pointer in /proc/self/task/<tid>/syscall (proc(5)). Its descriptor
// has the head of its list of robust mutexes, whose address the kernel knows (get_robust_list(2)), at the same place as ours.
#define _GNU_SOURCE
#include "threads.h"

#include "descriptors.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int own_tid;

static uintptr_t robust_list(int tid) {
    void *head = NULL;
    size_t size = 0;
    // Under a filter of system calls that may kill we try none that it need not list.
    bool known = descriptors_are_private() && syscall(SYS_get_robust_list, tid, &head, &size) == 0;
    return known ? (uintptr_t)head : 0;
}

// The last but one of its numbers.
static uintptr_t stack_pointer(int tid) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    if (owned_slurp(path, text, sizeof text) <= 0)
        return 0;
    char *last = strrchr(text, ' ');
    if (!last)
        return 0;   // "running"
    *last = '\0';
    char *at = strrchr(text, ' ');
    return at ? strtoull(at + 1, NULL, 16) : 0;
}

static void add(void *context, const struct owned *directory, const char *name) {
    struct threads *threads = context;
    char path[64], text[64];
    int tid = atoi(name);
    (void)directory;
    if (tid <= 0 || tid == own_tid)
        return;
    if (threads->count == THREADS) {
        threads->full = true;
        return;
    }
    uintptr_t own = robust_list(0), list = robust_list(tid);
    struct thread thread = {.tid = tid, .stack = stack_pointer(tid)};
    thread.descriptor = own && list ? list - own + (uintptr_t)pthread_self() : 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", tid);
    if (owned_slurp(path, text, sizeof text) > 0)
        snprintf(thread.name, sizeof thread.name, "%.*s", (int)strcspn(text, "\n"), text);
    threads->thread[threads->count++] = thread;
}

bool threads_has(int tid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d", tid);
    return access(path, F_OK) == 0;
}

void threads_look(struct threads *threads) {
    char link[64];   // <pid>/task/<tid>
    ssize_t length = readlink("/proc/thread-self", link, sizeof link - 1);
    link[length > 0 ? length : 0] = '\0';
    const char *last = strrchr(link, '/');
    own_tid = last ? atoi(last + 1) : 0;
    threads->count = 0;
    threads->full = !own_tid;
    threads->full |= !owned_list("/proc/self/task", add, threads);
}
