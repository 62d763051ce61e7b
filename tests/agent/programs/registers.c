// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// One thread that waits again and again, 50 ms at a time, in a system call between whose two sides it keeps a value in
// each register that a system call leaves alone, rounds upwards, and has something in its red zone. A line and status 1
// if one of them is another afterwards. x86_64.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xmmintrin.h>

struct values {
    uint64_t general[10];
    unsigned char vectors[16][16], red[128];
    uint32_t rounding;
    uint16_t control;
};

static struct values given, found;

__attribute__((naked)) static long wait_with(struct timespec *time, struct values *in, struct values *out) {
    (void)time, (void)in, (void)out;
    __asm__ volatile("push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
                     "push %rdx; push %rdi; push %rsi\n"
                     "lea -128(%rsp), %r8\n"
                     "lea 336(%rsi), %r9\n"
                     "mov $16, %ecx\n"
                     "1: mov -8(%r9,%rcx,8), %rax; mov %rax, -8(%r8,%rcx,8); dec %ecx; jnz 1b\n"
                     "movups 80(%rsi), %xmm0; movups 96(%rsi), %xmm1; movups 112(%rsi), %xmm2; movups 128(%rsi), %xmm3\n"
                     "movups 144(%rsi), %xmm4; movups 160(%rsi), %xmm5; movups 176(%rsi), %xmm6; movups 192(%rsi), %xmm7\n"
                     "movups 208(%rsi), %xmm8; movups 224(%rsi), %xmm9; movups 240(%rsi), %xmm10; movups 256(%rsi), %xmm11\n"
                     "movups 272(%rsi), %xmm12; movups 288(%rsi), %xmm13; movups 304(%rsi), %xmm14; movups 320(%rsi), %xmm15\n"
                     "ldmxcsr 464(%rsi); fldcw 468(%rsi)\n"
                     "mov 0(%rsi), %rbx; mov 8(%rsi), %rbp; mov 16(%rsi), %r8; mov 24(%rsi), %r9; mov 32(%rsi), %r10\n"
                     "mov 40(%rsi), %r12; mov 48(%rsi), %r13; mov 56(%rsi), %r14; mov 64(%rsi), %r15; mov 72(%rsi), %rdx\n"
                     "xor %esi, %esi; mov $35, %eax; syscall\n"   // nanosleep
                     "mov 16(%rsp), %r11\n"
                     "mov %rbx, 0(%r11); mov %rbp, 8(%r11); mov %r8, 16(%r11); mov %r9, 24(%r11); mov %r10, 32(%r11)\n"
                     "mov %r12, 40(%r11); mov %r13, 48(%r11); mov %r14, 56(%r11); mov %r15, 64(%r11); mov %rdx, 72(%r11)\n"
                     "movups %xmm0, 80(%r11); movups %xmm1, 96(%r11); movups %xmm2, 112(%r11); movups %xmm3, 128(%r11)\n"
                     "movups %xmm4, 144(%r11); movups %xmm5, 160(%r11); movups %xmm6, 176(%r11); movups %xmm7, 192(%r11)\n"
                     "movups %xmm8, 208(%r11); movups %xmm9, 224(%r11); movups %xmm10, 240(%r11); movups %xmm11, 256(%r11)\n"
                     "movups %xmm12, 272(%r11); movups %xmm13, 288(%r11); movups %xmm14, 304(%r11); movups %xmm15, 320(%r11)\n"
                     "stmxcsr 464(%r11); fnstcw 468(%r11)\n"
                     "lea -128(%rsp), %r8\n"
                     "lea 336(%r11), %r9\n"
                     "mov $16, %ecx\n"
                     "2: mov -8(%r8,%rcx,8), %rdx; mov %rdx, -8(%r9,%rcx,8); dec %ecx; jnz 2b\n"
                     "pop %rsi; pop %rdi; pop %rdx\n"
                     "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n");
}

int main(void) {
    for (size_t i = 0; i < offsetof(struct values, rounding); i++)
        ((unsigned char *)&given)[i] = (unsigned char)(i * 7 + 1);
    given.rounding = 0x5f80;   // upwards
    given.control = 0x0b7f;
    printf("waits\n");
    fflush(stdout);
    for (;;) {
        struct timespec time = {0, 50000000};
        memset(&found, 0, sizeof found);
        long result = wait_with(&time, &given, &found);
        if (!result && !memcmp(&given, &found, sizeof given))
            continue;
        for (size_t i = 0; i < sizeof given; i++)
            if (((unsigned char *)&given)[i] != ((unsigned char *)&found)[i]) {
                printf("result %ld, another value at %zu\n", result, i);
                return 1;
            }
        printf("result %ld\n", result);
        return 1;
    }
}
