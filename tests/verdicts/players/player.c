// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// player SCRIPT [WORKERS SECONDS]: does what a script says, in this process or in so many workers, which are replaced
// after so many seconds (0: never). A line is: milliseconds since the start, + or - or = (malloc, free, realloc), the
// number of a block, its size, and which path takes it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STAY __attribute__((noinline, noclone))

static struct block {
    void *memory;
    size_t size;
} *blocks;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

// As large as it is to be; what is new is written, so that it is resident.
static void take(struct block *block, size_t size) {
    block->memory = realloc(block->memory, size);
    if (!block->memory)
        abort();
    if (size > block->size)
        memset((char *)block->memory + block->size, 1, size - block->size);
    block->size = size;
}

STAY static void keep(struct block *block, size_t size) {
    take(block, size);
    __asm__ volatile("");
}

STAY static void serve(struct block *block, size_t size) {
    take(block, size);
    __asm__ volatile("");
}

STAY static void play(FILE *script, long start, long until) {
    long due, number, size;
    int path;
    char what;
    while (fscanf(script, "%ld %c %ld %ld %d", &due, &what, &number, &size, &path) == 5) {
        long left = start + due - now();
        if (until && start + due > until)
            return;
        if (left > 0)
            usleep((useconds_t)left * 1000);
        if (what == '-') {
            free(blocks[number].memory);
            blocks[number] = (struct block){0};
        } else {
            (path ? serve : keep)(&blocks[number], (size_t)size);
        }
    }
}

static pid_t worker(const char *name, long seconds) {
    pid_t child = fork();
    if (child == 0) {
        FILE *script = fopen(name, "re");
        long start = now();
        if (script)
            play(script, start, seconds ? start + seconds * 1000 : 0);
        while (!seconds)
            pause();
        _exit(0);
    }
    return child;
}

int main(int count, char **arguments) {
    if (count != 2 && count != 4)
        return 2;
    blocks = calloc(1 << 20, sizeof *blocks);
    if (count == 2) {
        FILE *script = fopen(arguments[1], "re");
        if (!script)
            return 1;
        play(script, now(), 0);
        for (;;)
            pause();
    }
    for (int left = atoi(arguments[2]); left > 0; left--)
        worker(arguments[1], atol(arguments[3]));
    while (wait(NULL) > 0)
        worker(arguments[1], atol(arguments[3]));
    return 0;
}
