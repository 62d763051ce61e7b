// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// prof_hooks THREADS STEPS DUMP: keeps a ledger by jemalloc's hooks while threads allocate, reallocate and free each
// other's blocks, then writes a dump. Wants MALLOC_CONF to say prof_active:false: the ledger begins before sampling does.
// Prints what it counted, and ends with 0 unless an address was born while it lived or died while it did not.
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
extern size_t xallocx(void *, size_t, size_t, int) __attribute__((weak));

typedef void (*sample_hook)(const void *, size_t, void **, unsigned, size_t);
typedef void (*free_hook)(const void *, size_t);

#define SLOTS 512                  // where threads leave their blocks
#define PLACES (1u << 18)          // of the ledger
#define GONE ((const void *)1)     // what died there
#define TOO_MUCH ((size_t)1 << 47) // no process has so many addresses

static _Atomic(void *) slots[SLOTS];
static struct {
    const void *address;
    size_t size;
} ledger[PLACES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long births, deaths, born_twice, unknown, odd;
static _Atomic unsigned long refused;
static int steps;

// The place of an address, or a free one for it; the lock is held. What is sampled begins a page.
static unsigned place_of(const void *address, bool for_birth) {
    unsigned place = (unsigned)((uintptr_t)address >> 12) * 2654435761u % PLACES;
    for (unsigned looked = 0; looked < PLACES; looked++, place = (place + 1) % PLACES) {
        if (ledger[place].address == address) return place;
        if (!ledger[place].address) break;
    }
    if (!for_birth) return PLACES;
    place = (unsigned)((uintptr_t)address >> 12) * 2654435761u % PLACES;
    while (ledger[place].address && ledger[place].address != GONE) place = (place + 1) % PLACES;
    return place;
}

static void born(const void *address, size_t size, void **frames, unsigned length, size_t usable) {
    pthread_mutex_lock(&lock);
    unsigned place = place_of(address, true);
    births++;
    born_twice += ledger[place].address == address;
    odd += !length || !frames[0] || size > usable || malloc_usable_size((void *)address) != usable;
    ledger[place].address = address;
    ledger[place].size = usable;
    pthread_mutex_unlock(&lock);
}

static void died(const void *address, size_t usable) {
    pthread_mutex_lock(&lock);
    unsigned place = place_of(address, false);
    deaths++;
    if (place == PLACES) {
        unknown++;
    } else {
        odd += ledger[place].size != usable;
        ledger[place].address = GONE;
    }
    pthread_mutex_unlock(&lock);
}

static unsigned any(unsigned *state) {
    *state = *state * 1103515245u + 12345u;
    return *state >> 8;
}

static void *serve(void *number) {
    unsigned state = (unsigned)(uintptr_t)number;
    for (int i = 0; i < steps; i++) {
        _Atomic(void *) *slot = &slots[any(&state) % SLOTS];
        size_t size = any(&state) % 8 ? 1 + any(&state) % 3000 : 1 + any(&state) % 300000;
        void *mine = atomic_exchange(slot, NULL), *other = NULL;
        switch (any(&state) % 6) {
        case 0:
            free(mine);
            mine = calloc(1, size);
            break;
        case 1:
            free(mine);
            if (posix_memalign(&mine, 8192, size)) mine = NULL;
            break;
        case 2:
            if (mine) xallocx(mine, size, any(&state) % 2 * size, 0);
            break;
        case 3:
            other = realloc(mine, TOO_MUCH);
            refused += !other;
            if (other) mine = other;
            break;
        default:
            other = realloc(mine, size); // in place, or elsewhere
            if (other) mine = other;
        }
        free(atomic_exchange(slot, mine));
    }
    return NULL;
}

// Sets both hooks, that of deaths first, and sees that they are what jemalloc has then.
static bool set_hooks(sample_hook on_birth, free_hook on_death) {
    sample_hook birth = on_birth;
    free_hook death = on_death;
    size_t size = sizeof birth;
    return !mallctl("experimental.hooks.prof_sample_free", NULL, NULL, &death, sizeof death) &&
           !mallctl("experimental.hooks.prof_sample", NULL, NULL, &birth, sizeof birth) &&
           !mallctl("experimental.hooks.prof_sample_free", &death, &size, NULL, 0) && death == on_death &&
           !mallctl("experimental.hooks.prof_sample", &birth, &size, NULL, 0) && birth == on_birth;
}

static bool run(int threads) {
    pthread_t started[16];
    if (threads < 1 || threads > 16) return false;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, serve, (void *)(uintptr_t)(i + 1))) return false;
    for (int i = 0; i < threads; i++) pthread_join(started[i], NULL);
    return true;
}

int main(int count, char **words) {
    if (count != 4 || !mallctl) return 2;
    int threads = atoi(words[1]);
    steps = atoi(words[2]);
    const char *dump = words[3];
    bool on = true;
    if (!set_hooks(born, died) || mallctl("prof.active", NULL, NULL, &on, sizeof on)) return 2;
    if (!run(threads) || mallctl("prof.dump", NULL, NULL, &dump, sizeof dump)) return 2;
    unsigned long living = 0, bytes = 0, counted = births + deaths;
    for (unsigned i = 0; i < PLACES; i++)
        if (ledger[i].address && ledger[i].address != GONE) {
            living++;
            bytes += ledger[i].size;
        }
    if (!set_hooks(NULL, NULL)) return 2;
    steps = 1000;
    if (!run(threads)) return 2;
    printf("births %lu deaths %lu living %lu bytes %lu refused %lu after %lu\n", births, deaths, living, bytes,
           atomic_load(&refused), births + deaths - counted);
    if (born_twice || unknown || odd) fprintf(stderr, "born twice %lu, unknown %lu, odd %lu\n", born_twice, unknown, odd);
    return born_twice || unknown || odd;
}
