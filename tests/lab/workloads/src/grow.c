// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service without a JVM whose memory behaves in the way that its argument names.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BLOCK = 2000, MIB = 1 << 20, STEP = MIB / 4, HUGE_PAGE = 2 * MIB };

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

// As before, in huge pages.
static void map_huge_pages(void)
{
    char *mapped = mmap(NULL, 401 * (size_t)MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || madvise(mapped, 401 * (size_t)MIB, MADV_HUGEPAGE))
        exit(1);
    mapped += HUGE_PAGE - (size_t)mapped % HUGE_PAGE;
    for (int i = 0; i < 400 * MIB / HUGE_PAGE - 1; i++) {
        mapped[(size_t)i * HUGE_PAGE] = 1;
        usleep(400000);
    }
    for (;;)
        pause();
}

// Writes files in memory, some MiB a second, up to 400 MiB, and has none of them open.
static void write_files(void)
{
    static char content[MIB];
    memset(content, 1, sizeof content);
    if (mkdir("/dev/shm/grown", 0700) && errno != EEXIST)
        exit(1);
    for (int i = 0; i < 400; i++) {
        char path[64];
        snprintf(path, sizeof path, "/dev/shm/grown/%d", i);
        int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (file < 0 || write(file, content, sizeof content) != sizeof content || close(file))
            exit(1);
        usleep(200000);
    }
    for (;;)
        pause();
}

// Attaches segments of System V, some MiB a second, up to 400 MiB. The kernel removes each with its last process.
static void attach(void)
{
    for (int i = 0; i < 400 * MIB / STEP; i++) {
        int segment = shmget(IPC_PRIVATE, STEP, IPC_CREAT | 0600);
        void *attached = segment < 0 ? (void *)-1 : shmat(segment, NULL, 0);
        if (attached == (void *)-1 || shmctl(segment, IPC_RMID, NULL))
            exit(1);
        memset(attached, 1, STEP);
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
    if (argc == 2 && strcmp(argv[1], "shm-open") == 0)
        map(open("/dev/shm/grow-opened", O_RDWR | O_CREAT | O_TRUNC, 0600));
    if (argc == 2 && strcmp(argv[1], "tmpfs") == 0)
        write_files();
    if (argc == 2 && strcmp(argv[1], "system-v") == 0)
        attach();
    if (argc == 2 && strcmp(argv[1], "huge-pages") == 0)
        map_huge_pages();
    if (argc == 2 && strcmp(argv[1], "stacks") == 0)
        deepen_in_a_thread();
    // Dies and restarts, so that no process is ever seen twice.
    if (argc == 2 && strcmp(argv[1], "cannot-tell") == 0) {
        filled(MIB);
        sleep(2);
        return 1;
    }
    fputs("usage: grow slow-leak|fragmentation|native-growth|other-memory|shared-memory|shm-open|tmpfs|system-v|"
          "huge-pages|stacks|cannot-tell\n", stderr);
    return 2;
}
