// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// short_threads THREADS AT_A_TIME DUMP: so many threads, so many at a time, each of which allocates 31 blocks of 1,000
// bytes and forgets one of them. Then writes a dump. Ends with 0 when all went well.
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#define BLOCKS 31

static void *serve(void *nothing) {
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(1000);
    for (int i = 0; i < BLOCKS; i++)
        if (i != BLOCKS / 2) free(blocks[i]);
    return nothing;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    int left = atoi(arguments[1]), most = atoi(arguments[2]);
    pthread_t threads[64];
    if (most < 1 || most > 64) return 2;
    while (left > 0) {
        int now = left < most ? left : most;
        for (int i = 0; i < now; i++)
            if (pthread_create(&threads[i], NULL, serve, NULL)) return 1;
        for (int i = 0; i < now; i++) pthread_join(threads[i], NULL);
        left -= now;
    }
    int (*mallctl)(const char *, void *, size_t *, void *, size_t);
    *(void **)&mallctl = dlsym(dlopen(NULL, RTLD_NOW), "mallctl");
    const char *dump = arguments[3];
    return !mallctl || mallctl("prof.dump", NULL, NULL, &dump, sizeof dump);
}
