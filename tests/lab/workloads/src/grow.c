// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service without a JVM whose memory behaves in the way that its argument names.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BLOCK = 2000, MIB = 1 << 20 };

static void *filled(size_t size)
{
    void *block = malloc(size);
    if (block == NULL)
        exit(1);
    return memset(block, 1, size);
}

// Keeps one in ten of the small blocks in 60 MiB, spread evenly.
static void fragment(void)
{
    enum { COUNT = 60 * MIB / BLOCK };
    static void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++)
        blocks[i] = filled(BLOCK);
    for (int i = 0; i < COUNT - 1; i++)
        if (i % 10)
            free(blocks[i]);
    for (;;)
        pause();
}

// Leaks some MiB a second, up to 400 MiB.
static void leak(void)
{
    for (int i = 0; i < 400 * MIB / (100 * BLOCK); i++) {
        for (int j = 0; j < 100; j++)
            (void)!filled(BLOCK);
        usleep(50000);
    }
    for (;;)
        pause();
}

// Maps memory by itself, some MiB a second, up to 400 MiB: of a file that is in memory only, or of none.
static void map(int file)
{
    enum { STEP = MIB / 4 };
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    for (int i = 0; i < 400 * MIB / STEP; i++) {
        if (file >= 0 && ftruncate(file, (off_t)(i + 1) * STEP))
            exit(1);
        void *mapped = mmap(NULL, STEP, PROT_READ | PROT_WRITE, flags, file, file < 0 ? 0 : (off_t)i * STEP);
        if (mapped == MAP_FAILED)
            exit(1);
        memset(mapped, 1, STEP);
        usleep(50000);
    }
    for (;;)
        pause();
}

// Calls itself, some MiB of stack a second, up to 400 MiB.
static int deepen(int more)
{
    volatile char frame[MIB / 8];
    memset((void *)frame, more, sizeof frame);
    usleep(50000);
    return more ? deepen(more - 1) + frame[0] : pause();
}

static void *deep(void *unused)
{
    deepen(400 * 8);
    return unused;
}

static void deepen_in_a_thread(void)
{
    pthread_attr_t large;
    pthread_t thread;
    pthread_attr_init(&large);
    if (pthread_attr_setstacksize(&large, 512 * (size_t)MIB) || pthread_create(&thread, &large, deep, NULL))
        exit(1);
    pthread_join(thread, NULL);
}

// Leaks 400 kB a second, for ever.
static void leak_slowly(void)
{
    for (;;) {
        for (int j = 0; j < 10; j++)
            (void)!filled(BLOCK);
        usleep(50000);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "slow-leak") == 0)
        leak_slowly();
    if (argc == 2 && strcmp(argv[1], "fragmentation") == 0)
        fragment();
    if (argc == 2 && strcmp(argv[1], "native-growth") == 0)
        leak();
    if (argc == 2 && strcmp(argv[1], "other-memory") == 0)
        map(-1);
    if (argc == 2 && strcmp(argv[1], "shared-memory") == 0)
        map((int)syscall(SYS_memfd_create, "grown", 0));
    if (argc == 2 && strcmp(argv[1], "stacks") == 0)
        deepen_in_a_thread();
    // Dies and restarts, so that no process is ever seen twice.
    if (argc == 2 && strcmp(argv[1], "cannot-tell") == 0) {
        filled(MIB);
        sleep(2);
        return 1;
    }
    fputs("usage: grow slow-leak|fragmentation|native-growth|other-memory|shared-memory|stacks|cannot-tell\n", stderr);
    return 2;
}
