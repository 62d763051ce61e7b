// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A library that is opened in a process that runs: it appends its settings, and who called, to the file that they name
// ("<file> <seconds> <what it does then>").
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int *volatile nowhere;

__attribute__((visibility("default"))) int offheap_attach(const char *settings) {
    char path[4096], what[16] = "";
    double seconds = 0;
    if (sscanf(settings, "%4095s %lf %15s", path, &seconds, what) < 1)
        return -1;
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (seconds > 0)
        nanosleep(&pause, NULL);
    if (!strcmp(what, "fault"))
        *nowhere = 1;
    FILE *file = fopen(path, "a");
    if (!file)
        return -2;
    fprintf(file, "%d %s\n", (int)gettid(), settings);
    fclose(file);
    return 42;
}
