// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// forked_workers WORKERS BLOCKS DIRECTORY: forks so many workers, each of which forgets so many blocks of 1,000 bytes,
// half of them in a thread, and writes a dump with its number. Ends with 0 when all went well.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int blocks;

static void *serve(void *nothing) {
    for (int i = 0; i < blocks / 2; i++) *(void *volatile *)malloc(1000) = nothing;
    return nothing;
}

static int work(const char *directory, int number) {
    char path[4096];
    const char *dump = path;
    pthread_t thread;
    serve(NULL);
    if (pthread_create(&thread, NULL, serve, NULL) || pthread_join(thread, NULL)) return 1;
    snprintf(path, sizeof path, "%s/%d", directory, number);
    int (*mallctl)(const char *, void *, size_t *, void *, size_t);
    *(void **)&mallctl = dlsym(dlopen(NULL, RTLD_NOW), "mallctl");
    return !mallctl || mallctl("prof.dump", NULL, NULL, &dump, sizeof dump);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    int workers = atoi(arguments[1]), status, failed = 0;
    blocks = atoi(arguments[2]);
    for (int i = 0; i < workers; i++)
        if (!fork()) _exit(work(arguments[3], i));
    while (wait(&status) > 0) failed += status != 0;
    return failed > 0;
}
