// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
// Leaks and non-leaks in C whose bytes are known: truth leak | threads | cache | sawtooth | arena
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "steps.h"

enum { SLOTS = 8192 };

static void *slots[SLOTS];
static unsigned long used, drawn = 42;

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
    memset(memory, 1, size);
    return memory;
}

// A MiB each step that nothing frees.
STAY static void remember_request(void)
{
    for (int i = 0; i < 256; i++)
        *(void **)take(4096) = slots[0];
    HERE;
}

STAY static void *serve_connection(void *nothing)
{
    void *buffer = take(262144);

    for (;;)
        pause();
    free(buffer);
    return nothing;
}

// Four threads each step that do not end.
STAY static void accept_connections(void)
{
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    for (int i = 0; i < 4; i++)
        if (pthread_create(&thread, &attributes, serve_connection, NULL))
            abort();
    usleep(2000);
}

// Fills in a third of the steps, then replaces what it has.
STAY static void fill_cache(void)
{
    for (int i = 0; i < 512; i++) {
        unsigned long slot = used < 4096 ? used++ : draw() % 4096;

        free(slots[slot]);
        slots[slot] = take(4096);
    }
    HERE;
}

// Gathers for five steps and gives everything back.
STAY static void gather_batch(void)
{
    for (int i = 0; i < 400; i++)
        slots[used++] = take(4096);
    if (used >= 2000)
        while (used)
            free(slots[--used]);
    HERE;
}

// Always as many objects, of ever other sizes, between some that stay: the heap is torn, and nothing leaks.
STAY static void tear_arena(void)
{
    for (int i = 0; i < 4000; i++) {
        unsigned long slot = draw() % 4000;

        free(slots[slot]);
        slots[slot] = take(64 + draw() % 8192);
    }
    HERE;
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*step)(void);
    } kinds[] = {
        {"leak", remember_request}, {"threads", accept_connections}, {"cache", fill_cache},
        {"sawtooth", gather_batch}, {"arena", tear_arena},
    };

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (count == 2 && !strcmp(arguments[1], kinds[i].name))
            while (next_step())
                kinds[i].step();
    return 0;
}
