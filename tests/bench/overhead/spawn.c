// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// spawn COUNT: starts /bin/true so often, one after the other, and prints the wall-clock seconds of one.
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    char *const command[] = {"true", NULL};
    int times = count > 1 ? atoi(arguments[1]) : 0, status;
    double begin = now();
    for (int i = 0; i < times; i++) {
        pid_t child;
        if (posix_spawn(&child, "/bin/true", NULL, NULL, command, environ) || waitpid(child, &status, 0) != child || status)
            return 1;
    }
    printf("%.9f\n", (now() - begin) / times);
    return 0;
}
