// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
// Services in C whose leaks are known to the byte: served KIND DIRECTORY [USER ...]; the tallies go to the
// directory, and workers have these users by turns.
// A KiB or more is always a size that jemalloc gives out as it is asked for.
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <pwd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "served.h"

enum { BLOCK = 16384, MAPPED = 65536, ARENA = 4 << 20, SLOTS = 2048, WORKERS = 3 };

static unsigned long drawn = 42;

static unsigned long draw(void)
{
    drawn = drawn * 6364136223846793005UL + 1442695040888963407UL;
    return drawn >> 33;
}

STAY static void *take(size_t size)
{
    void *memory = malloc(size);

    if (!memory)
        abort();
    *(void *volatile *)memory = memory;
    return memory;
}

// What any service does beside its leak.
STAY static void work(void)
{
    for (int i = 0; i < 20; i++)
        free(take(1024 + draw() % 8192));
}

static void forget(int path, size_t size)
{
    take(size);
    __atomic_add_fetch(&forgotten[path], size, __ATOMIC_RELAXED);
}

STAY static void remember_order(void)
{
    forget(0, BLOCK);
    HERE;
}

STAY static void keep_receipt(void)
{
    forget(1, BLOCK);
    HERE;
}

STAY static void log_visit(void)
{
    forget(2, BLOCK);
    HERE;
}

STAY static void take_orders(void)
{
    work();
    for (int i = 0; i < 4; i++)
        remember_order();
    HERE;
}

STAY static void *handle_connection(void *nothing)
{
    work();
    remember_order();
    return nothing;
}

// Each connection has a thread of its own, which ends with it.
STAY static void accept_connections(void)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, handle_connection, NULL))
            abort();
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

STAY static void serve_page(void)
{
    work();
    for (int i = 0; i < 6; i++)
        remember_order();
    for (int i = 0; i < 4; i++)
        keep_receipt();
    for (int i = 0; i < 2; i++)
        log_visit();
    HERE;
}

// Holds ever more of as many pages as there are slots.
STAY static void fill_cache(void)
{
    static void *slots[SLOTS];

    for (int i = 0; i < 4; i++) {
        unsigned long slot = draw() % SLOTS;

        if (!slots[slot])
            slots[slot] = take(BLOCK);
    }
    HERE;
}

STAY static void fill_cache_and_take_orders(void)
{
    fill_cache();
    take_orders();
    HERE;
}

static void *map(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        abort();
    return memory;
}

// Does nothing else, so that hardly anything else becomes resident.
STAY static void map_buffer(void)
{
    memset(map(MAPPED), 1, MAPPED);
    forgotten[0] += MAPPED;
}

// As allocators do that take large pieces of memory from the kernel and give out small ones.
STAY static void *take_from_arena(size_t size)
{
    static char *arena;
    static size_t used = ARENA;

    if (used + size > ARENA) {
        arena = map(ARENA);
        used = 0;
    }
    used += size;
    return arena + used - size;
}

STAY static void parse_message(void)
{
    for (int i = 0; i < 16; i++)
        memset(take_from_arena(4096), 1, 4096);
    forgotten[0] += 16UL * 4096;
}

static const struct {
    const char *name;
    void (*step)(void);
} kinds[] = {
    {"orders", take_orders},  {"threads", accept_connections}, {"mix", serve_page},
    {"cached", fill_cache_and_take_orders}, {"mapped", map_buffer}, {"arena", parse_message},
};

// As servers do that need root for their port only.
static void become(const char *name)
{
    struct passwd *user = getpwnam(name);

    if (!user || setgroups(0, NULL) || setgid(user->pw_gid) || setuid(user->pw_uid))
        abort();
}

static void fork_workers(const char *directory, char **users, int count)
{
    for (int i = 0; i < WORKERS; i++)
        if (!fork()) {
            FILE *tally = open_tally(directory);

            become(users[i % count]);
            serve(tally, take_orders);
        }
    while (wait(NULL) > 0)
        ;
}

int main(int count, char **arguments)
{
    if (count > 3 && !strcmp(arguments[1], "prefork"))
        fork_workers(arguments[2], arguments + 3, count - 3);
    if (count == 3 && !strcmp(arguments[1], "forking")) {
        if (daemon(0, 0))
            abort();
        serve(open_tally(arguments[2]), take_orders);
    }
    for (size_t i = 0; count == 3 && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(arguments[1], kinds[i].name))
            serve(open_tally(arguments[2]), kinds[i].step);
    return 1;
}
