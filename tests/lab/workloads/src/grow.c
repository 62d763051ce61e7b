// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service without a JVM whose memory behaves in the way that its argument names.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    // Dies and restarts, so that no process is ever seen twice.
    if (argc == 2 && strcmp(argv[1], "cannot-tell") == 0) {
        filled(MIB);
        sleep(2);
        return 1;
    }
    fputs("usage: grow slow-leak|fragmentation|native-growth|cannot-tell\n", stderr);
    return 2;
}
