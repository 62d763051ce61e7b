// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The hooks. Each passes its call on to the process's allocator and counts the bytes down to the thread's next sample.
// The distances are random, so that each byte is as likely as any other (a Poisson process, as in jemalloc). What is
// sampled goes into the book, which is all that there is of it.
//
// - A call on the way takes no lock and no system call: it subtracts, and looks at one byte of the book's filter.
// - Our own calls of malloc and the others go through our own entries, which nobody redirects. The loader binds these to
//   the function itself, never to the program's stub, as long as nobody takes the function's address in this library.
// - Nothing here allocates. What does so all the same inside a hook, a handler of a signal, or libgcc when it meets code
//   that the process registered, is passed on without a look (`busy`).
// - In a forked child the book is closed and the filter empty: the hooks pass on, whatever was held while it forked.
// - Someone may have copied a hook's address from an entry, or be inside a hook, while the entries are put back. So this
//   library stays, and its hooks pass calls on for ever.
#define _GNU_SOURCE
#include "sampler.h"

#include "book.h"
#include "clock.h"
#include "got.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define DEPTH 128   // frames of a stack, as jemalloc has them
#define INTERRUPTED 200000   // nanoseconds: more of a look is the time of others
#define RARELY(condition) __builtin_expect((condition), 0)

static struct {
    atomic_bool on;
    size_t lg_interval;
    _Atomic(void *) unwinder;
    atomic_uint_fast64_t unseen, seed, spent;
} sampler;

// Initial-exec, so that reading it calls nothing.
static __thread struct {
    uint64_t left;     // bytes until the next sample; drawn at the interval of that time, also after another attach
    uint64_t random;   // 0: nothing is drawn yet
    bool busy;
} own __attribute__((tls_model("initial-exec")));

// -ln(u) for a random u, without libm: u is x / 2^53 and x is 2^power * (1 + s) / (1 - s), where s is at most 1/3.
static double exponential(uint64_t bits) {
    uint64_t x = (bits >> 11) + 1;
    int power = 63 - __builtin_clzll(x);
    double mantissa = (double)x / (double)(UINT64_C(1) << power), s = (mantissa - 1) / (mantissa + 1), sum = 0;
    for (int i = 17; i > 0; i -= 2)
        sum = sum * s * s + 1.0 / i;
    return (53 - power) * 0.69314718055994531 - 2 * s * sum;
}

static uint64_t distance(void) {
    if (!sampler.lg_interval)
        return 0;   // each
    own.random ^= own.random << 13;
    own.random ^= own.random >> 7;
    own.random ^= own.random << 17;
    return (uint64_t)(exponential(own.random * UINT64_C(0x2545f4914f6cdd1d)) * (double)(UINT64_C(1) << sampler.lg_interval));
}

// The first distance of a thread. True if `size` bytes go beyond it, and are sampled.
static bool begin_thread(size_t size) {
    uint64_t value = atomic_fetch_add(&sampler.seed, UINT64_C(0x9e3779b97f4a7c15));
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    own.random = (value ^ value >> 27) | 1;
    own.left = distance();
    bool beyond = size > own.left;
    own.left -= beyond ? 0 : size;
    return beyond;
}

static void spend(uint64_t began) {
    uint64_t took = clock_nanoseconds() - began;
    atomic_fetch_add_explicit(&sampler.spent, took < INTERRUPTED ? took : INTERRUPTED, memory_order_relaxed);
}

static void be_born(const void *block, size_t size) {
    void *frames[DEPTH + 8];
    unsigned length = 0, ours = 0;
    void (*unwinder)(void **, unsigned *, unsigned) = (void (*)(void **, unsigned *, unsigned))atomic_load(&sampler.unwinder);
    if (unwinder)
        unwinder(frames, &length, DEPTH + 8);
    while (ours < length && got_is_ours((uintptr_t)frames[ours]))
        ours++;
    length = length - ours < DEPTH ? length - ours : DEPTH;
    book_born(block, size, frames + ours, length, size);
}

// What is sampled, and what is in the book already although it is new: its death went past us.
__attribute__((noinline, cold)) static void look(void *block, size_t size, bool due) {
    if (own.busy || !block)
        return;
    int saved = errno;
    own.busy = true;
    uint64_t began = clock_nanoseconds();
    if (book_may_have(block) && book_forget(block))
        atomic_fetch_add(&sampler.unseen, 1);
    if (due && !own.random)
        due = begin_thread(size);
    if (due) {
        own.left = distance();
        if (sampler_active())
            be_born(block, size);
    }
    spend(began);
    own.busy = false;
    errno = saved;
}

static inline void *seen(void *block, size_t size) {
    uint64_t left = own.left;
    if (RARELY(size > left)) {
        look(block, size, true);
        return block;
    }
    own.left = left - size;
    if (RARELY(book_may_have(block)))
        look(block, size, false);
    return block;
}

__attribute__((noinline, cold)) static bool look_for(const void *block, struct death *death) {
    if (own.busy || !block)
        return false;
    int saved = errno;
    own.busy = true;
    uint64_t began = clock_nanoseconds();
    bool found = book_end(block, death);
    spend(began);
    own.busy = false;
    errno = saved;
    return found;
}

__attribute__((noinline, cold)) static void end(void *block) {
    struct death death;
    look_for(block, &death);
    free(block);
}

static void hook_free(void *block) {
    if (RARELY(book_may_have(block)))
        end(block);
    else
        free(block);
}

static void *hook_malloc(size_t size) {
    return seen(malloc(size), size);
}

static void *hook_calloc(size_t count, size_t size) {
    return seen(calloc(count, size), count * size);
}

// The block dies before the call, since another thread may get its address in it. If the call fails, it lives on.
__attribute__((noinline, cold)) static void *move(void *block, size_t size) {
    struct death death;
    bool known = look_for(block, &death);
    void *moved = realloc(block, size);
    if (known && !moved && size) {
        int saved = errno;
        own.busy = true;
        book_undo(&death);
        own.busy = false;
        errno = saved;
    }
    return moved;
}

static void *hook_realloc(void *block, size_t size) {
    void *moved = RARELY(book_may_have(block)) ? move(block, size) : realloc(block, size);
    return seen(moved, size);
}

// libc's calls realloc by its entry, and would be seen twice.
static void *hook_reallocarray(void *block, size_t count, size_t size) {
    size_t whole;
    if (__builtin_mul_overflow(count, size, &whole)) {
        errno = ENOMEM;
        return NULL;
    }
    return hook_realloc(block, whole);
}

static int hook_posix_memalign(void **block, size_t alignment, size_t size) {
    int error = posix_memalign(block, alignment, size);
    if (!error)
        seen(*block, size);
    return error;
}

static void *hook_aligned_alloc(size_t alignment, size_t size) {
    return seen(aligned_alloc(alignment, size), size);
}

static void *hook_memalign(size_t alignment, size_t size) {
    return seen(memalign(alignment, size), size);
}

static void *hook_valloc(size_t size) {
    return seen(valloc(size), size);
}

// Not every allocator has it, so that libc's would give a block that the allocator must not get.
static void *hook_pvalloc(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole;
    if (__builtin_add_overflow(size, page - 1, &whole)) {
        errno = ENOMEM;
        return NULL;
    }
    return hook_memalign(page, whole & -page);
}

static const struct got_hook hooks[] = {
    {"malloc", (void *)hook_malloc},
    {"free", (void *)hook_free},
    {"cfree", (void *)hook_free},
    {"calloc", (void *)hook_calloc},
    {"realloc", (void *)hook_realloc},
    {"reallocarray", (void *)hook_reallocarray},
    {"posix_memalign", (void *)hook_posix_memalign},
    {"aligned_alloc", (void *)hook_aligned_alloc},
    {"memalign", (void *)hook_memalign},
    {"valloc", (void *)hook_valloc},
    {"pvalloc", (void *)hook_pvalloc},
};

bool sampler_prepare(size_t lg_interval) {
    atomic_store(&sampler.on, false);
    atomic_store(&sampler.unseen, 0);
    sampler.lg_interval = lg_interval;
    atomic_fetch_add(&sampler.seed, (uint64_t)clock_monotonic() << 24 ^ (uint64_t)getpid());
    return book_reserve(true) && got_prepare(hooks, sizeof hooks / sizeof *hooks);
}

void sampler_leave_out_this_thread(void) {
    own.busy = true;
}

void sampler_install_hook(void (*hook)(void **, unsigned *, unsigned)) {
    atomic_store(&sampler.unwinder, (void *)hook);
}

bool sampler_switch(bool on) {
    if (on && !got_redirected())
        got_redirect();
    atomic_store(&sampler.on, on);
    return true;
}

bool sampler_active(void) {
    return atomic_load_explicit(&sampler.on, memory_order_relaxed) && book_is_open();
}

size_t sampler_lg_interval(void) {
    return sampler.lg_interval;
}

bool sampler_follow(void) {
    bool redirected = got_redirected() > 0;
    if (redirected)
        got_follow();
    return redirected;
}

size_t sampler_detach(size_t *left) {
    atomic_store(&sampler.on, false);
    size_t put_back = got_put_back(left);
    book_close();
    return put_back;
}

size_t sampler_entries(void) {
    return got_redirected();
}

uint64_t sampler_spent(void) {
    return atomic_load(&sampler.spent);
}

uint64_t sampler_unseen(void) {
    return atomic_load(&sampler.unseen);
}
