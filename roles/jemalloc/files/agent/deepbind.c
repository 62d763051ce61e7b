// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A library that is opened with RTLD_DEEPBIND finds the C library's malloc before any that is preloaded. It would free
// there what jemalloc allocated, and the process dies: PHP opens its extensions so. Where jemalloc is the allocator of
// the process, this dlopen takes the flag away.
//
// It jumps to the real one and does not call it: that looks at its return address to know who asks, for the search path
// and the namespace. It runs in every process that the agent is preloaded into, also before any constructor has, so the
// first call finds the real one. dlmopen makes a copy of the C library that nothing is preloaded into: it stays as it is.
#define _GNU_SOURCE
#include "deepbind.h"

#include "mallctl.h"

#include <dlfcn.h>
#include <stdlib.h>

#ifdef RTLD_DEEPBIND   // musl has none

__attribute__((visibility("hidden"))) opener *deepbind_next;
__attribute__((visibility("hidden"))) int deepbind_kept = ~0;   // of the flags

// Called below by the first call, or the first few at once. Returns NULL if there is no other dlopen.
__attribute__((used)) opener *deepbind_find(void) {
    opener *next;
    void *volatile block = malloc(1);   // a compiler may leave out one that nobody uses
    if (je_owns(block))
        deepbind_kept = ~RTLD_DEEPBIND;
    free(block);
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    __atomic_store_n(&deepbind_next, next, __ATOMIC_RELEASE);
    return next;
}

#if defined __x86_64__
__asm__(".text\n"
        ".globl dlopen\n"
        ".type dlopen, @function\n"
        "dlopen:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    movq deepbind_next(%rip), %rax\n"
        "    testq %rax, %rax\n"
        "    jz 2f\n"
        "1:  andl deepbind_kept(%rip), %esi\n"
        "    jmpq *%rax\n"
        "2:  pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"   // a call wants 16 bytes aligned
        "    .cfi_adjust_cfa_offset 8\n"
        "    call deepbind_find\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rax, %rax\n"
        "    jnz 1b\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size dlopen, .-dlopen\n");
#elif defined __aarch64__
__asm__(".text\n"
        ".globl dlopen\n"
        ".type dlopen, %function\n"
        "dlopen:\n"
        "    .cfi_startproc\n"
        "    hint #34\n"   // bti c
        "    adrp x16, deepbind_next\n"
        "    add x16, x16, :lo12:deepbind_next\n"
        "    ldar x16, [x16]\n"
        "    cbz x16, 2f\n"
        "1:  adrp x17, deepbind_kept\n"
        "    ldr w17, [x17, :lo12:deepbind_kept]\n"
        "    and w1, w1, w17\n"
        "    br x16\n"
        "2:  stp x29, x30, [sp, #-32]!\n"
        "    .cfi_def_cfa_offset 32\n"
        "    .cfi_offset 29, -32\n"
        "    .cfi_offset 30, -24\n"
        "    stp x0, x1, [sp, #16]\n"
        "    mov x29, sp\n"
        "    bl deepbind_find\n"
        "    mov x16, x0\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #32\n"
        "    .cfi_def_cfa_offset 0\n"
        "    .cfi_restore 29\n"
        "    .cfi_restore 30\n"
        "    cbnz x16, 1b\n"
        "    mov x0, xzr\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size dlopen, .-dlopen\n");
#endif

#endif
