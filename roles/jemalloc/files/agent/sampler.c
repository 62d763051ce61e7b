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

__attribute__((noinline, cold)) static void live_on(const struct death *death) {
    int saved = errno;
    own.busy = true;
    book_undo(death);
    own.busy = false;
    errno = saved;
}

// The block dies before the call, since another thread may get its address in it. If the call fails, it lives on.
__attribute__((noinline, cold)) static void *move(void *block, size_t size) {
    struct death death;
    bool known = look_for(block, &death);
    void *moved = realloc(block, size);
    if (known && !moved && size)
        live_on(&death);
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

// What jemalloc has beside it (jemalloc(3)), and C++'s operators, which some allocators bring with them: these call no
// malloc that could be seen. `name` is the allocator's own, once an entry has said where that is.
#define OWN(name, result, ...) static result (*name)(__VA_ARGS__)
#define BORN(name, given, call)             \
    static void *hook_##name given {        \
        return seen(name call, size);       \
    }
#define DIES(name, given, call)             \
    static void hook_##name given {         \
        struct death death;                 \
        if (RARELY(book_may_have(block)))   \
            look_for(block, &death);        \
        name call;                          \
    }

OWN(mallocx, void *, size_t, int);
OWN(rallocx, void *, void *, size_t, int);
OWN(dallocx, void, void *, int);
OWN(sdallocx, void, void *, size_t, int);
OWN(sized_free, void, void *, size_t);                    // C23's; jemalloc's since 5.3.1
OWN(aligned_sized_free, void, void *, size_t, size_t);
OWN(new_one, void *, size_t);
OWN(new_array, void *, size_t);
OWN(new_one_nothrow, void *, size_t, const void *);
OWN(new_array_nothrow, void *, size_t, const void *);
OWN(new_one_aligned, void *, size_t, size_t);
OWN(new_array_aligned, void *, size_t, size_t);
OWN(delete_one, void, void *);
OWN(delete_array, void, void *);
OWN(delete_one_sized, void, void *, size_t);
OWN(delete_array_sized, void, void *, size_t);
OWN(delete_one_aligned, void, void *, size_t);
OWN(delete_array_aligned, void, void *, size_t);
OWN(delete_one_sized_aligned, void, void *, size_t, size_t);
OWN(delete_array_sized_aligned, void, void *, size_t, size_t);

BORN(mallocx, (size_t size, int flags), (size, flags))
BORN(new_one, (size_t size), (size))
BORN(new_array, (size_t size), (size))
BORN(new_one_nothrow, (size_t size, const void *nothrow), (size, nothrow))
BORN(new_array_nothrow, (size_t size, const void *nothrow), (size, nothrow))
BORN(new_one_aligned, (size_t size, size_t alignment), (size, alignment))
BORN(new_array_aligned, (size_t size, size_t alignment), (size, alignment))
DIES(dallocx, (void *block, int flags), (block, flags))
DIES(sdallocx, (void *block, size_t size, int flags), (block, size, flags))
DIES(sized_free, (void *block, size_t size), (block, size))
DIES(aligned_sized_free, (void *block, size_t alignment, size_t size), (block, alignment, size))
DIES(delete_one, (void *block), (block))
DIES(delete_array, (void *block), (block))
DIES(delete_one_sized, (void *block, size_t size), (block, size))
DIES(delete_array_sized, (void *block, size_t size), (block, size))
DIES(delete_one_aligned, (void *block, size_t alignment), (block, alignment))
DIES(delete_array_aligned, (void *block, size_t alignment), (block, alignment))
DIES(delete_one_sized_aligned, (void *block, size_t size, size_t alignment), (block, size, alignment))
DIES(delete_array_sized_aligned, (void *block, size_t size, size_t alignment), (block, size, alignment))

static void *hook_rallocx(void *block, size_t size, int flags) {
    struct death death;
    bool known = RARELY(book_may_have(block)) && look_for(block, &death);
    void *moved = rallocx(block, size, flags);
    if (known && !moved)
        live_on(&death);
    return seen(moved, size);
}

#define HOOK(name) {#name, (void *)hook_##name, NULL}
#define HOOK_OF_SOME(symbol, name) {symbol, (void *)hook_##name, (void **)&name}

static const struct got_hook hooks[] = {
    HOOK(malloc),
    HOOK(free),
    {"cfree", (void *)hook_free, NULL},
    HOOK(calloc),
    HOOK(realloc),
    HOOK(reallocarray),
    HOOK(posix_memalign),
    HOOK(aligned_alloc),
    HOOK(memalign),
    HOOK(valloc),
    HOOK(pvalloc),
    HOOK_OF_SOME("mallocx", mallocx),
    HOOK_OF_SOME("rallocx", rallocx),
    HOOK_OF_SOME("dallocx", dallocx),
    HOOK_OF_SOME("sdallocx", sdallocx),
    HOOK_OF_SOME("free_sized", sized_free),
    HOOK_OF_SOME("free_aligned_sized", aligned_sized_free),
    HOOK_OF_SOME("_Znwm", new_one),
    HOOK_OF_SOME("_Znam", new_array),
    HOOK_OF_SOME("_ZnwmRKSt9nothrow_t", new_one_nothrow),
    HOOK_OF_SOME("_ZnamRKSt9nothrow_t", new_array_nothrow),
    HOOK_OF_SOME("_ZnwmSt11align_val_t", new_one_aligned),
    HOOK_OF_SOME("_ZnamSt11align_val_t", new_array_aligned),
    HOOK_OF_SOME("_ZdlPv", delete_one),
    HOOK_OF_SOME("_ZdaPv", delete_array),
    HOOK_OF_SOME("_ZdlPvm", delete_one_sized),
    HOOK_OF_SOME("_ZdaPvm", delete_array_sized),
    HOOK_OF_SOME("_ZdlPvSt11align_val_t", delete_one_aligned),
    HOOK_OF_SOME("_ZdaPvSt11align_val_t", delete_array_aligned),
    HOOK_OF_SOME("_ZdlPvmSt11align_val_t", delete_one_sized_aligned),
    HOOK_OF_SOME("_ZdaPvmSt11align_val_t", delete_array_sized_aligned),
};

bool sampler_prepare(size_t lg_interval) {
    atomic_store(&sampler.on, false);
    atomic_store(&sampler.unseen, 0);
    sampler.lg_interval = lg_interval;
    own.random = own.left = 0;   // or each of the children that a thread forks would draw what its parent draws
    atomic_fetch_add(&sampler.seed, (uint64_t)clock_monotonic() << 24 ^ (uint64_t)getpid());
    return book_reserve(true) && got_prepare(hooks, sizeof hooks / sizeof *hooks);
}

void sampler_leave_out_this_thread(void) {
    own.busy = true;
}

void sampler_install_hook(void (*hook)(void **, unsigned *, unsigned)) {
    atomic_store(&sampler.unwinder, (void *)hook);
}

void sampler_redirect(void) {
    if (!got_redirected())
        got_redirect();
}

bool sampler_switch(bool on) {
    if (on)
        sampler_redirect();
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

size_t sampler_taken(void) {
    return got_taken();
}

uint64_t sampler_spent(void) {
    return atomic_load(&sampler.spent);
}

uint64_t sampler_unseen(void) {
    return atomic_load(&sampler.unseen);
}
