// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// An allocator with functions of its own for blocks whose size the caller knows (C23), as jemalloc has since 5.3.1.
#include <stddef.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

void *malloc(size_t size) { return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
void free(void *block) { __libc_free(block); }

void free_sized(void *block, size_t size) {
    (void)size;
    __libc_free(block);
}

void free_aligned_sized(void *block, size_t alignment, size_t size) {
    (void)alignment, (void)size;
    __libc_free(block);
}
