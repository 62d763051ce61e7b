// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The backtrace hook. It runs inside malloc, in any thread, whatever locks that thread holds. So it must neither wait
// nor read memory that may not be there:
//
// - First the compiler's tables lead from frame to frame (cfi.c), as in libgcc's unwinder, which jemalloc itself takes.
//   Where a frame is not plain, libgcc does the whole walk. Both stop at JIT code, for which there is no table, but know
//   the frame pointer register of that frame; from there the chain of frame pointers goes on. JIT code of HotSpot
//   keeps one with -XX:+PreserveFramePointer, and libjvm is built with frame pointers.
// - The chain is followed only inside the thread's own stack. Its bounds do not come from pthread_getattr_np: that
//   allocates while it holds the thread's lock, so called again inside that very allocation it waits for itself;
//   and for the main thread it uses stdio. The upper bound is the thread's descriptor, which lies at the top of the
//   stack that libc gave the thread, or the auxiliary vector for the main thread; every page from the stack pointer
//   up to it is probed once per thread. Another stack (sigaltstack, fibers) has a hole below that bound. Even if one
//   has none, nothing faults: a walk probes each page again before it reads it.
// - A return address must lie in memory that is executable (ranges.c).
// - Where Go calls C, the chain goes on in the goroutine's stack (goroutine.c).
// - A frame of HotSpot's interpreter becomes the address of what it interprets (hotspot.c).
#define _GNU_SOURCE
#include "unwind.h"

#include "cfi.h"
#include "feeder.h"
#include "goroutine.h"
#include "hotspot.h"
#include "ranges.h"
#include "readable.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <unistd.h>
#include <unwind.h>

#if defined(__x86_64__)
#define FRAME_POINTER 6   // DWARF's number of the register
#elif defined(__aarch64__)
#define FRAME_POINTER 29
#else
#error "not a platform of this agent"
#endif

#define STACK_LIMIT (16u << 20)   // farther from its top a stack is not probed
#define OTHER_STACK (256u << 10) // of another stack is looked at, at most
#define UNCHECKED __attribute__((no_sanitize("address", "thread")))   // it reads frames, which are no C objects

static struct {
    _Unwind_Reason_Code (*backtrace)(_Unwind_Trace_Fn, void *);
    _Unwind_Ptr (*ip)(struct _Unwind_Context *);
    _Unwind_Word (*cfa)(struct _Unwind_Context *);
    _Unwind_Word (*gr)(struct _Unwind_Context *, int);
} libgcc;

const char *const unwinder_names[] = {"hybrid", "fp", "builtin", NULL};

static bool use_libgcc;

static uintptr_t page_size, main_top;
static _Atomic uint64_t walks, by_libgcc, continued, off_stack, unmapped;

// What this thread found out about its stacks: [low, top) can be read; what lies at `hole`, above hole_low, cannot.
static _Thread_local struct {
    uintptr_t low, top, hole_low, hole;
} known __attribute__((tls_model("initial-exec")));

struct walk {
    void **frames;
    unsigned length, limit, skip;
    bool ended;              // at the start of the thread
    struct code code;
    uintptr_t pointer, cfa;  // of the last frame
};

static bool probe(uintptr_t low, uintptr_t top) {
    uintptr_t end = top == known.top && low < known.low ? known.low : (top + page_size - 1) & -page_size;
    for (uintptr_t page = low; page < end; page += page_size) {
        if (!readable(page)) {
            known.hole_low = low;
            known.hole = page;
            return false;
        }
    }
    known.low = low;
    known.top = top;
    return true;
}

// The end of the stack that `pointer` lies on, 0 when it is not one that we know.
static uintptr_t stack_top(uintptr_t pointer) {
    uintptr_t page = pointer & -page_size, self = (uintptr_t)pthread_self();
    if (page >= known.low && pointer < known.top)
        return known.top;
    if (page >= known.hole_low && pointer < known.hole)
        return 0;
    if (pointer < main_top && main_top - pointer <= STACK_LIMIT)
        return probe(page, main_top) ? main_top : 0;
    if (pointer < self && self - pointer <= STACK_LIMIT)
        return probe(page, self) ? self : 0;
    return 0;
}

static uintptr_t code_address(uintptr_t address) {
#ifdef __aarch64__
    register uintptr_t link __asm__("x30") = address;   // removes a signature; does nothing where there is none
    __asm__("hint #7" : "+r"(link));
    return link;
#else
    return address;
#endif
}

static UNCHECKED void follow(struct walk *walk) {
    uintptr_t low = walk->cfa, at = walk->pointer, top = stack_top(low);
    struct goroutine goroutine;
    if ((at < low || at >= top) && goroutine_called(low, at, &goroutine)) {
        low = goroutine.low;
        top = goroutine.top;
        uintptr_t address = *(const uintptr_t *)low;
        if (ranges_executable(address, &walk->code))
            walk->frames[walk->length++] = (void *)address;
    } else if (!top) {
        atomic_fetch_add_explicit(&off_stack, 1, memory_order_relaxed);
        return;
    }
    unsigned before = walk->length;
    uintptr_t seen = low & -page_size;   // its page and those below, as far as this walk has come
    while (walk->length < walk->limit && at >= low && at % sizeof at == 0 && at <= top - 2 * sizeof at) {
        const uintptr_t *frame = (const uintptr_t *)at;
        bool interpreted = walk->length && at - low >= HOTSPOT_METHOD * sizeof at &&
                           hotspot_interprets((uintptr_t)walk->frames[walk->length - 1]);
        for (uintptr_t word = at - (interpreted ? HOTSPOT_METHOD * sizeof at : 0); word < at + 2 * sizeof at;
             word += sizeof at) {
            if ((word & -page_size) > seen) {
                if (!readable(word))
                    goto done;
                seen = word & -page_size;
            }
        }
        // Plus one, since readers subtract one from each return address. Methods are aligned, so it stays unmistakable.
        if (interpreted && frame[-HOTSPOT_METHOD] && frame[-HOTSPOT_METHOD] % sizeof at == 0)
            walk->frames[walk->length - 1] = (void *)(frame[-HOTSPOT_METHOD] + 1);
        uintptr_t address = code_address(frame[1]);
        if (!ranges_executable(address, &walk->code)) {
            if (address)
                atomic_fetch_add_explicit(&unmapped, 1, memory_order_relaxed);
            break;
        }
        walk->frames[walk->length++] = (void *)address;
        low = at + 2 * sizeof at;
        at = frame[0];
    }
done:
    if (walk->length > before)
        atomic_fetch_add_explicit(&continued, 1, memory_order_relaxed);
}

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *argument) {
    struct walk *walk = argument;
    if (walk->skip) {
        walk->skip--;
        return _URC_NO_REASON;
    }
    uintptr_t address = libgcc.ip(context);
    if (!address) {
        walk->ended = true;
        return _URC_NO_REASON;
    }
    if (walk->length == walk->limit)
        return _URC_END_OF_STACK;
    walk->frames[walk->length++] = (void *)address;
    walk->pointer = libgcc.gr(context, FRAME_POINTER);
    walk->cfa = libgcc.cfa(context);
    return _URC_NO_REASON;
}

// True once the walk is over, or at a frame without a table; false: the walk is one for libgcc. That reads the code at each
// return address, and dies of the first that is none: what lies at the start of a coroutine's stack may be anything. So
// another stack than the thread's own is followed here, too, as far as there are pages.
static bool follow_tables(struct walk *walk, struct frame frame) {
    uintptr_t top = stack_top(frame.stack), most = top;
    if (!top) {
        top = (frame.stack & -page_size) + page_size;
        most = top + OTHER_STACK;
    }
    for (;;) {
        switch (cfi_step(&frame, top)) {
        case CFI_HARD:
            return false;
        case CFI_BEYOND:
            if (top == most || !readable(top))
                return frame.inner;   // then libgcc may not be asked
            top += page_size;
            continue;
        case CFI_FIRST:
            walk->ended = true;
            return true;
        case CFI_NO_TABLE:
            return true;
        case CFI_CALLER:
            break;
        }
        frame.address = code_address(frame.address);
        if (!frame.address)
            walk->ended = true;
        if (walk->ended || walk->length == walk->limit)
            return true;
        walk->frames[walk->length++] = (void *)frame.address;
        walk->pointer = frame.pointer;
        walk->cfa = frame.stack;
    }
}

// Where the caller is, in its code and in its stack. The address is behind its instruction, as a return address is.
static inline __attribute__((always_inline)) struct frame here(void) {
    struct frame frame = {.inner = false};
#if defined(__x86_64__)
    __asm__ volatile("lea (%%rip), %0; mov %%rsp, %1; mov %%rbp, %2"
                     : "=&r"(frame.address), "=&r"(frame.stack), "=&r"(frame.pointer));
#else
    __asm__ volatile("adr %0, . + 4; mov %1, sp; mov %2, x29"
                     : "=&r"(frame.address), "=&r"(frame.stack), "=&r"(frame.pointer));
#endif
    return frame;
}

__attribute__((noinline)) void unwind_hook(void **frames, unsigned *length, unsigned limit) {
    int saved = errno;
    struct walk walk = {.frames = frames, .limit = limit, .skip = 1};
    atomic_fetch_add_explicit(&walks, 1, memory_order_relaxed);
    if (!use_libgcc) {
        walk.pointer = walk.cfa = (uintptr_t)__builtin_frame_address(0);
    } else if (!follow_tables(&walk, here())) {
        atomic_fetch_add_explicit(&by_libgcc, 1, memory_order_relaxed);
        walk.length = 0;
        libgcc.backtrace(step, &walk);
    }
    if (walk.length && !walk.ended && walk.length < limit &&
        !ranges_executable((uintptr_t)frames[walk.length - 1], &walk.code)) {
        atomic_fetch_add_explicit(&unmapped, 1, memory_order_relaxed);
        walk.length--;
    } else if (!walk.ended && walk.length < limit) {
        follow(&walk);
    }
    *length = walk.length;
    errno = saved;
}

void unwind_read_counts(struct unwind_counts *counts) {
    counts->walks = atomic_load_explicit(&walks, memory_order_relaxed);
    counts->by_libgcc = atomic_load_explicit(&by_libgcc, memory_order_relaxed);
    counts->continued = atomic_load_explicit(&continued, memory_order_relaxed);
    counts->off_stack = atomic_load_explicit(&off_stack, memory_order_relaxed);
    counts->unmapped = atomic_load_explicit(&unmapped, memory_order_relaxed);
}

// Call it in the constructor, while no other thread opens or closes anything.
void unwind_find_libgcc(void) {
#ifdef __GLIBC__
    // Not a dependency of this library: where it is missing, a process must still start.
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    *(void **)&libgcc.ip = dlsym(library, "_Unwind_GetIP");
    *(void **)&libgcc.cfa = dlsym(library, "_Unwind_GetCFA");
    *(void **)&libgcc.gr = dlsym(library, "_Unwind_GetGR");
    *(void **)&libgcc.backtrace = dlsym(library, "_Unwind_Backtrace");
    if (!libgcc.ip || !libgcc.cfa || !libgcc.gr)
        libgcc.backtrace = NULL;
    cfi_find_tables(dlsym(library, "_Unwind_Find_FDE"), dlsym(RTLD_DEFAULT, "_dl_find_object"));
#else
    // LLVM's, linked in: images with musl seldom have libgcc, whose unwinder allocates there (jemalloc#585).
    extern void *_Unwind_Find_FDE(void *, void *);
    libgcc.ip = _Unwind_GetIP;
    libgcc.cfa = _Unwind_GetCFA;
    libgcc.gr = _Unwind_GetGR;
    libgcc.backtrace = _Unwind_Backtrace;
    cfi_find_tables((void *)_Unwind_Find_FDE, NULL);
#endif
}

enum unwinder unwind_prepare(enum unwinder wanted, const char **why) {
    void *frames[8];
    unsigned length = 0;
    *why = NULL;
    if (wanted == UNWINDER_BUILTIN)
        return wanted;
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    main_top = (uintptr_t)getauxval(AT_RANDOM);   // above every frame of the main thread
    ranges_refresh();
#ifdef __GLIBC__   // with musl it is in this library, and allocates nothing
    cfi_find_unwinder();
#endif
    goroutine_prepare();
    use_libgcc = wanted == UNWINDER_HYBRID && libgcc.backtrace;
    if (wanted == UNWINDER_HYBRID && !use_libgcc) {
        wanted = UNWINDER_FP;
        *why = "libgcc_s.so.1 cannot be loaded";
    }
    unwind_hook(frames, &length, 8);   // libgcc allocates what it needs at its first use: now, not inside malloc
    if (!feeder_install_hook(unwind_hook)) {
        *why = "this jemalloc has no backtrace hook (it is older than 5.3.0)";
        return UNWINDER_BUILTIN;
    }
    return wanted;
}
