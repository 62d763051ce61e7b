// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// allocator_cases CASE [DUMP]: what a service may do to its allocator. Each case says in a line what it saw.
//
// no-memory: threads allocate for the first time where there is no memory. pvalloc: what it returns is freed.
// errno: blocks are freed while memory is locked. depth: an allocation below 300 frames, and a dump.
// threads: the process's size while eight threads hold a block each.
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST 64 // threads

extern int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));

static sem_t begin;
static pthread_barrier_t all_hold, all_may_end;
static int got_null;

static bool start(int count, void *(*run)(void *), pthread_t *threads) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, 128 << 10)) return false;
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], &attributes, run, NULL)) return false;
    return true;
}

static void *allocate_first(void *nothing) {
    while (sem_wait(&begin)) continue;
    void *volatile block = malloc(100);
    if (!block) __atomic_add_fetch(&got_null, 1, __ATOMIC_SEQ_CST);
    pthread_barrier_wait(&all_hold); // musl unmaps the stack of a thread that has ended: room for those still to come
    free(block);
    return nothing;
}

static int no_memory(void) {
    pthread_t threads[MOST];
    struct rlimit limit = {.rlim_max = RLIM_INFINITY};
    long pages;
    char said[80];
    if (sem_init(&begin, 0, 0) || pthread_barrier_init(&all_hold, NULL, MOST)) return 2;
    if (!start(MOST, allocate_first, threads)) return 2;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1) return 2;
    limit.rlim_cur = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (8 << 20);
    if (setrlimit(RLIMIT_AS, &limit)) return 2;
    for (size_t size = 4 << 20; size >= 8; size /= 2)
        while (malloc(size)) continue;
    for (int i = 0; i < MOST; i++) sem_post(&begin);
    for (int i = 0; i < MOST; i++) pthread_join(threads[i], NULL);
    int length = snprintf(said, sizeof said, "null %d of %d\n", got_null, MOST);
    return write(STDOUT_FILENO, said, (size_t)length) != length;
}

static int take_pages(void) {
    extern __attribute__((weak)) void *pvalloc(size_t);   // jemalloc's; musl has none
    void *volatile block = pvalloc(5000);
    size_t usable = malloc_usable_size(block);
    memset(block, 1, 5000);
    free(block);
    printf("usable %zu\n", usable);
    return 0;
}

static int keep_errno(void) {
    void (*volatile release)(void *) = free; // a compiler may rely on what free is to keep
    int changed = 0;
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) return 2;
    for (int i = 0; i < 3000; i++) {
        void *volatile block = malloc(100000 + (size_t)(i % 7) * 1000000 + (i % 3 ? 0 : 9000000));
        if (!block) return 2;
        memset(block, 1, 100);
        errno = 0;
        release(block);
        changed += errno != 0;
    }
    printf("changed %d\n", changed);
    return 0;
}

static __attribute__((noinline)) void *below(int frames) {
    void *block = frames ? below(frames - 1) : malloc(4096);
    __asm__ volatile("" : "+r"(block) : : "memory"); // a frame of its own for each call
    return block;
}

static int go_deep(const char *dump) {
    void *volatile block = below(300);
    if (!mallctl || mallctl("prof.dump", NULL, NULL, &dump, sizeof dump)) return 2;
    free(block);
    return 0;
}

static void *hold(void *nothing) {
    void *volatile block = malloc(100);
    pthread_barrier_wait(&all_hold);
    pthread_barrier_wait(&all_may_end);
    free(block);
    return nothing;
}

static int many_threads(void) {
    enum { COUNT = 8 };
    pthread_t threads[COUNT];
    char line[256];
    pthread_barrier_init(&all_hold, NULL, COUNT + 1);
    pthread_barrier_init(&all_may_end, NULL, COUNT + 1);
    if (!start(COUNT, hold, threads)) return 2;
    pthread_barrier_wait(&all_hold);
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "VmSize:", 7)) fputs(line, stdout);
    pthread_barrier_wait(&all_may_end);
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
    return 0;
}

int main(int count, char **words) {
    const char *wanted = count > 1 ? words[1] : "";
    if (!strcmp(wanted, "no-memory")) return no_memory();
    if (!strcmp(wanted, "pvalloc")) return take_pages();
    if (!strcmp(wanted, "errno")) return keep_errno();
    if (!strcmp(wanted, "depth") && count > 2) return go_deep(words[2]);
    if (!strcmp(wanted, "threads")) return many_threads();
    return 2;
}
