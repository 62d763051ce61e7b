// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service without a JVM whose memory behaves in the way that its argument names.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
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
}

// Leaks some MiB a second, up to 400 MiB.
static void leak(void)
{
    for (int i = 0; i < 400 * MIB / (100 * BLOCK); i++) {
        for (int j = 0; j < 100; j++)
            (void)!filled(BLOCK);
        usleep(50000);
    }
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
        usleep(400000);
    }
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

static void map_anonymous(void)
{
    map(-1);
}

static void map_memfd(void)
{
    map((int)syscall(SYS_memfd_create, "grown", 0));
}

static void map_shm(void)
{
    map(open("/dev/shm/grow-opened", O_RDWR | O_CREAT | O_TRUNC, 0600));
}

// What follows takes a MiB a second, up to 400 MiB, of what no map of its process shows, or shows otherwise.
enum { SECOND = 1000000, SLOWLY = 400 };

static void *fresh(size_t size, int flags)
{
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (found == MAP_FAILED)
        exit(1);
    return found;
}

// Locked, so that it is never swapped out.
static void lock(void)
{
    for (int i = 0; i < SLOWLY; i++) {
        if (mlock(memset(fresh(MIB, 0), 1, MIB), MIB))
            exit(1);
        usleep(SECOND);
    }
}

static void map_reserved_huge_pages(void)
{
    for (int i = 0; i < SLOWLY / 2; i++) {
        memset(fresh(HUGE_PAGE, MAP_HUGETLB), 1, HUGE_PAGE);
        usleep(2 * SECOND);
    }
}

// Holds 200 MiB from its start, and has the kernel swap it out.
static void swap_out(void)
{
    enum { PAGE_OUT = 21, ALL = 200 };  // MADV_PAGEOUT, which glibc knows from 2.32 on
    char *held = memset(fresh(ALL * (size_t)MIB, 0), 1, ALL * (size_t)MIB);
    sleep(10);
    for (int i = 0; i < ALL; i++) {
        if (madvise(held + (size_t)i * MIB, MIB, PAGE_OUT))
            exit(1);
        usleep(SECOND);
    }
}

static void write_a_file(void)
{
    static char content[MIB];
    int file = open("/var/tmp/grown", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    memset(content, 1, sizeof content);
    for (int i = 0; i < SLOWLY; i++) {
        if (write(file, content, sizeof content) != sizeof content)
            exit(1);
        usleep(SECOND);
    }
}

static void allow_many_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        exit(1);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        exit(1);
}

// Pipes that nobody reads, a page in each: the kernel limits how much a user may have in larger ones.
static void fill_pipes(void)
{
    enum { PAGE = 4096 };
    static char content[PAGE];
    allow_many_files();
    for (int i = 0; i < SLOWLY * MIB / PAGE; i++) {
        int ends[2];
        if (pipe(ends) || write(ends[1], content, PAGE) != PAGE)
            exit(1);
        if (i % 16 == 0)
            usleep(SECOND / (MIB / PAGE / 16));
    }
}

// Connections to itself that nobody reads.
static void fill_connections(void)
{
    static char content[MIB / 4];
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    allow_many_files();
    if (bind(listening, (struct sockaddr *)&here, size) || listen(listening, 1) ||
        getsockname(listening, (struct sockaddr *)&here, &size))
        exit(1);
    for (int i = 0; i < SLOWLY * 4; i++) {
        int sending = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(sending, (struct sockaddr *)&here, size) || accept(listening, NULL, NULL) < 0 ||
            send(sending, content, sizeof content, MSG_DONTWAIT) <= 0)
            exit(1);
        usleep(SECOND / 4);
    }
}

// Looks for files that are not there: the kernel remembers each name.
static void look_for_files(void)
{
    for (int i = 0; i < SLOWLY * 5000; i++) {
        char path[64];
        snprintf(path, sizeof path, "/var/tmp/there-is-no-file-of-this-name-%d", i);
        if (access(path, F_OK) == 0)
            exit(1);
        if (i % 250 == 0)
            usleep(SECOND / 20);
    }
}

// Dies and restarts, so that no process is ever seen twice.
static void die(void)
{
    filled(MIB);
    sleep(2);
    exit(1);
}

static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {
    {"slow-leak", leak_slowly},
    {"fragmentation", fragment},
    {"native-growth", leak},
    {"other-memory", map_anonymous},
    {"shared-memory", map_memfd},
    {"shm-open", map_shm},
    {"tmpfs", write_files},
    {"system-v", attach},
    {"huge-pages", map_huge_pages},
    {"stacks", deepen_in_a_thread},
    {"locked", lock},
    {"hugetlb", map_reserved_huge_pages},
    {"swapped", swap_out},
    {"page-cache", write_a_file},
    {"pipes", fill_pipes},
    {"sockets", fill_connections},
    {"names", look_for_files},
    {"cannot-tell", die},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof ways / sizeof *ways; i++)
        if (strcmp(argv[1], ways[i].name) == 0) {
            ways[i].run();
            for (;;)
                pause();
        }
    fputs("usage: grow WAY, one of:", stderr);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        fprintf(stderr, " %s", ways[i].name);
    fputs("\n", stderr);
    return 2;
}
