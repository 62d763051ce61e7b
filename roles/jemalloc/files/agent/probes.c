// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// As OpenTelemetry's profiler wants them (its design document 00003-memory-profiling, of 2026-07-22): a note in the file
// says where each probe is, in which registers its arguments are, and where its semaphore is, which counts those that
// attach. A probe is one instruction that does nothing, which the kernel replaces for them. For the notes' format see
// "User Space Probe Implementation" of SystemTap. The registers are those of a call's arguments, since the profiler reads
// these whatever the note says.
#include "probes.h"

#include <stdatomic.h>
#include <stdint.h>

#if defined(__x86_64__)
#define FIRST "rdi"
#define SECOND "rsi"
#define THIRD "rdx"
#define OF "8@%%"
#elif defined(__aarch64__)
#define FIRST "x0"
#define SECOND "x1"
#define THIRD "x2"
#define OF "8@"
#endif

// The kernel finds them by their places in the file.
unsigned short probes_alloc __attribute__((section(".probes"), visibility("hidden")));
unsigned short probes_free __attribute__((section(".probes"), visibility("hidden")));

static atomic_size_t interval = 1;

#ifdef OF
#define PROBE(name, arguments)                                                                                         \
    "990: nop\n"                                                                                                       \
    ".pushsection .note.stapsdt, \"\", %%note\n"                                                                       \
    ".balign 4\n"                                                                                                      \
    ".4byte 992f - 991f, 994f - 993f, 3\n"                                                                             \
    "991: .asciz \"stapsdt\"\n"                                                                                        \
    "992: .balign 4\n"                                                                                                 \
    "993: .8byte 990b, _.stapsdt.base, probes_" name "\n"                                                              \
    ".asciz \"otel_memory\", \"" name "\", \"" arguments "\"\n"                                                        \
    "994: .balign 4\n"                                                                                                 \
    ".popsection\n"                                                                                                    \
    ".ifndef _.stapsdt.base\n"                                                                                         \
    ".pushsection .stapsdt.base, \"aG\", %%progbits, .stapsdt.base, comdat\n"                                          \
    ".weak _.stapsdt.base\n"                                                                                           \
    ".hidden _.stapsdt.base\n"                                                                                         \
    "_.stapsdt.base: .space 1\n"                                                                                       \
    ".size _.stapsdt.base, 1\n"                                                                                        \
    ".popsection\n"                                                                                                    \
    ".endif\n"

static void tell_alloc(uintptr_t pointer, uint64_t size, uint64_t weighted) {
    register uint64_t first __asm__(FIRST) = pointer, second __asm__(SECOND) = size, third __asm__(THIRD) = weighted;
    __asm__ volatile(PROBE("alloc", OF FIRST " " OF SECOND " " OF THIRD)::"r"(first), "r"(second), "r"(third));
}

static void tell_free(uintptr_t pointer) {
    register uint64_t first __asm__(FIRST) = pointer;
    __asm__ volatile(PROBE("free", OF FIRST)::"r"(first));
}
#else   // never attached to
static void tell_alloc(uintptr_t pointer, uint64_t size, uint64_t weighted) {
    (void)pointer, (void)size, (void)weighted;
}

static void tell_free(uintptr_t pointer) {
    (void)pointer;
}
#endif

void probes_interval(size_t bytes) {
    atomic_store_explicit(&interval, bytes, memory_order_relaxed);
}

// How many bytes a sample of so many stands for, s / (1 - exp(-s / interval)), without libm: exp(-x) - 1 by its series
// where x is small, and from that of x / 2 else, as exp(-x) - 1 = u * (2 + u) with u = exp(-x / 2) - 1.
static uint64_t weighted(size_t size) {
    size_t every = atomic_load_explicit(&interval, memory_order_relaxed);
    double x = (double)size / (double)every;
    int halved = 0;
    if (every <= 1 || x > 40)
        return size;
    for (; x > 1.0 / 16; x /= 2)
        halved++;
    double u = -x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5 * (1 - x / 6)))));
    for (; halved; halved--)
        u *= 2 + u;
    return (uint64_t)((double)size / -u + 0.5);
}

void probes_born(const void *pointer, size_t size) {
    if (__atomic_load_n(&probes_alloc, __ATOMIC_RELAXED))
        tell_alloc((uintptr_t)pointer, size, weighted(size));
}

void probes_died(const void *pointer) {
    if (__atomic_load_n(&probes_free, __ATOMIC_RELAXED))
        tell_free((uintptr_t)pointer);
}

bool probes_attached(void) {
    return __atomic_load_n(&probes_alloc, __ATOMIC_RELAXED);
}
