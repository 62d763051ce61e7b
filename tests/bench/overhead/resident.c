// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// resident MIB SECONDS: four threads allocate so much together, in blocks of 16 to 65536 bytes, and free three of four by
// chance; prints how many MiB are resident so many seconds later.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 4
#define BLOCKS (1 << 20)

static size_t each;

static void *work(void *argument) {
    uint64_t dice = 88172645463325252u + (uintptr_t)argument;
    char **blocks = calloc(BLOCKS, sizeof *blocks);
    size_t count = 0;
    for (size_t bytes = 0; bytes < each && count < BLOCKS; count++) {
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        size_t size = 16 + (dice >> 33) % 65521;
        blocks[count] = malloc(size);
        memset(blocks[count], 1, size);
        bytes += size;
    }
    for (size_t i = 0; i < count; i++) {
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        if (dice >> 62)
            free(blocks[i]);
    }
    return NULL;
}

int main(int count, char **arguments) {
    static char text[4096];
    pthread_t threads[THREADS];
    if (count != 3)
        return 2;
    each = (size_t)atol(arguments[1]) * (1 << 20) / THREADS;
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (long left = atol(arguments[2]); left > 0; left--) {
        sleep(1);
        free(malloc(1 << 16));   // jemalloc looks at the clock in its own calls
    }
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    if (!file || !fread(text, 1, sizeof text - 1, file))
        return 1;
    const char *line = strstr(text, "\nRss:");
    printf("%ld\n", line ? atol(line + 5) / 1024 : 0);
    return 0;
}
