// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What packaged services do to themselves: hard_cases MODE [ARGUMENT...].
//
// leak                     allocates for a minute
// bare PROGRAM ARGUMENT..  becomes a program without an environment, as nginx does in its upgrade
// open PROGRAM ARGUMENT..  the same, by a descriptor of the program
// child PROGRAM            starts one without an environment, and waits for it
// shell COMMAND            has a shell run it
// spawn PROGRAM            starts one by posix_spawn, and waits for it
// user UID                 becomes another user, forks a child, and leaks in both, as slapd does
// meanwhile UID            is another user, and could be itself again, as spamd while it starts
// mild PROGRAM ARGUMENT..  becomes a program under a filter of system calls that kills for none of the agent's
// title                    writes over its arguments and its environment, up to the last variable, as avahi does
// ended                    leaks in another thread than the main one, which has ended
// small                    forks a child in a thread with the least stack, and tells how it ended
// late                     puts itself under one that kills for unshare, forks a child, and leaks in both
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int leak(void) {
    for (int i = 0; i < 6000; i++) {
        *(void *volatile *)malloc(4096) = NULL;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return 0;
}

static void *leak_in_thread(void *nothing) {
    leak();
    return nothing;
}

static int leak_in_both(void) {
    pid_t child = fork();
    if (child > 0) {
        printf("%d\n", (int)child);
        fflush(stdout);
    }
    return child < 0 ? 1 : leak();
}

static void *fork_in_thread(void *nothing) {
    int status = -1;
    pid_t child = fork();
    if (!child)
        _exit(0);
    waitpid(child, &status, 0);
    printf("%d\n", status);
    return nothing;
}

static int filter(unsigned call, unsigned action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **arguments) {
    static char *const nothing[] = {NULL};
    const char *mode = count > 1 ? arguments[1] : "";
    if (!strcmp(mode, "leak"))
        return leak();
    if (!strcmp(mode, "bare") && count > 2)
        return execve(arguments[2], arguments + 2, nothing);
    if (!strcmp(mode, "open") && count > 2)
        return fexecve(open(arguments[2], O_RDONLY | O_CLOEXEC), arguments + 2, nothing);
    if (!strcmp(mode, "child") && count > 2) {
        int status;
        pid_t child = vfork();
        if (!child) {
            execve(arguments[2], arguments + 2, nothing);
            _exit(1);
        }
        return waitpid(child, &status, 0) != child || status;
    }
    if (!strcmp(mode, "shell") && count > 2)
        return system(arguments[2]);
    if (!strcmp(mode, "spawn") && count > 2) {
        int status;
        pid_t child;
        if (posix_spawn(&child, arguments[2], NULL, NULL, arguments + 2, environ))
            return 1;
        return waitpid(child, &status, 0) != child || status;
    }
    if (!strcmp(mode, "user") && count > 2) {
        int user = atoi(arguments[2]);
        return setgid((gid_t)user) || setuid((uid_t)user) || leak_in_both();
    }
    if (!strcmp(mode, "meanwhile") && count > 2)
        return seteuid((uid_t)atoi(arguments[2])) || leak();
    if (!strcmp(mode, "title")) {
        size_t last = 0;
        while (environ[last + 1])
            last++;
        memset(arguments[0], ' ', (size_t)(environ[last] + strlen(environ[last]) - arguments[0]));
        return leak();
    }
    if (!strcmp(mode, "mild") && count > 2)
        return filter(SYS_syslog, SECCOMP_RET_ERRNO | 1) || execv(arguments[2], arguments + 2);
    if (!strcmp(mode, "ended")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, leak_in_thread, NULL))
            return 1;
        pthread_exit(NULL);
    }
    if (!strcmp(mode, "small")) {
        pthread_attr_t attributes;
        pthread_t thread;
        return pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) ||
               pthread_create(&thread, &attributes, fork_in_thread, NULL) || pthread_join(thread, NULL);
    }
    if (!strcmp(mode, "late"))
        return filter(SYS_unshare, SECCOMP_RET_KILL_PROCESS) || leak_in_both();
    fprintf(stderr, "no mode '%s'\n", mode);
    return 2;
}
