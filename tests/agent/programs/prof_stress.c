// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// prof_stress SECONDS MODES FILE: threads come, allocate, leave their blocks to others and end. Meanwhile, as MODES say,
// another thread each resets the profile (r), switches sampling (a), writes a dump to FILE (d), reads statistics (e), or
// forks children that do all that a child may do (f). Ends with 0 when all went well.
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 4096
#define AT_A_TIME 8

extern int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));

static _Atomic(void *) slots[SLOTS];
static atomic_bool stop;
static atomic_ulong threads, resets, switches, dumps, epochs, forks, failed_children;
static const char *file;

static unsigned any(unsigned *state) {
    *state = *state * 1103515245u + 12345u;
    return *state >> 8;
}

static __attribute__((noinline)) void *allocate_below(size_t size, unsigned frames) {
    void *block = frames ? allocate_below(size, frames - 1) : malloc(size);
    __asm__ volatile("" : "+r"(block) : : "memory"); // a frame of its own for each call
    return block;
}

static void *live_shortly(void *number) {
    unsigned state = (unsigned)(uintptr_t)number * 2654435761u + 1;
    for (unsigned left = 1 + any(&state) % 4; left; left--) {
        void *block = allocate_below(16 + any(&state) % 2000, any(&state) % 6);
        free(atomic_exchange(&slots[any(&state) % SLOTS], block));
    }
    return NULL;
}

static void *breed(void *number) {
    unsigned next = (unsigned)(uintptr_t)number * 1000003u;
    while (!stop) {
        pthread_t born[AT_A_TIME];
        int count = 0;
        for (int i = 0; i < AT_A_TIME; i++)
            count += !pthread_create(&born[count], NULL, live_shortly, (void *)(uintptr_t)++next);
        for (int i = 0; i < count; i++) pthread_join(born[i], NULL);
        threads += (unsigned)count;
    }
    return NULL;
}

static void *free_all(void *number) {
    unsigned state = (unsigned)(uintptr_t)number;
    while (!stop) free(atomic_exchange(&slots[any(&state) % SLOTS], NULL));
    return NULL;
}

static void read_statistics(void) {
    static const char *const names[] = {"stats.allocated", "stats.active",  "stats.metadata",
                                        "stats.resident",  "stats.mapped", "stats.retained"};
    uint64_t epoch = 1;
    mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t value, size = sizeof value;
        mallctl(names[i], &value, &size, NULL, 0);
    }
}

// Every few milliseconds: what is reset all the time has nothing new to expire.
static void *reset(void *nothing) {
    for (unsigned state = 1; !stop; resets++) {
        mallctl("prof.reset", NULL, NULL, NULL, 0);
        usleep(2000 + any(&state) % 28000);
    }
    return nothing;
}

static void *switch_sampling(void *nothing) {
    for (bool on = false; !stop; on = !on, switches++) {
        mallctl("prof.active", NULL, NULL, &on, sizeof on);
        usleep(300);
    }
    return nothing;
}

static void *dump(void *nothing) {
    for (; !stop; usleep(1000)) dumps += !mallctl("prof.dump", NULL, NULL, &file, sizeof file);
    return nothing;
}

static void *read_all_the_time(void *nothing) {
    for (; !stop; epochs++) read_statistics();
    return nothing;
}

static void *allocate_in_child(void *nothing) {
    for (unsigned i = 0; i < 50; i++) free(allocate_below(100 + i, i % 6));
    return nothing;
}

static void be_a_child(void) {
    pthread_t thread;
    char path[4096];
    const char *at = path;
    alarm(20); // a child that hangs is a failed one
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    allocate_in_child(NULL);
    if (!pthread_create(&thread, NULL, allocate_in_child, NULL)) pthread_join(thread, NULL);
    snprintf(path, sizeof path, "%s.%d", file, (int)getpid());
    mallctl("prof.dump", NULL, NULL, &at, sizeof at);
    unlink(path);
    read_statistics();
    mallctl("prof.reset", NULL, NULL, NULL, 0);
    _exit(0);
}

static void *fork_children(void *nothing) {
    for (; !stop; usleep(2000)) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) be_a_child();
        if (child < 0 || waitpid(child, &status, 0) != child) continue;
        forks++;
        failed_children += status != 0;
    }
    return nothing;
}

int main(int count, char **words) {
    static const struct {
        char mode;
        void *(*run)(void *);
    } others[] = {{'r', reset}, {'a', switch_sampling}, {'d', dump}, {'e', read_all_the_time}, {'f', fork_children}};
    pthread_t started[16];
    int running = 0;
    if (count != 4 || !mallctl) return 2;
    file = words[3];
    time_t end = time(NULL) + atol(words[1]);
    for (uintptr_t i = 1; i <= 2; i++) {
        running += !pthread_create(&started[running], NULL, breed, (void *)i);
        running += !pthread_create(&started[running], NULL, free_all, (void *)i);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strchr(words[2], others[i].mode)) running += !pthread_create(&started[running], NULL, others[i].run, NULL);
    while (time(NULL) < end) usleep(100000);
    stop = true;
    alarm(60); // whoever does not end by then never does
    for (int i = 0; i < running; i++) pthread_join(started[i], NULL);
    printf("threads %lu resets %lu switches %lu dumps %lu epochs %lu forks %lu failed_children %lu\n", threads, resets,
           switches, dumps, epochs, forks, failed_children);
    return failed_children != 0;
}
