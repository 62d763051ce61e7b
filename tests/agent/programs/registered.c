// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Code that a program makes, with tables for the unwinder, as LLVM's JIT registers them: for each line on stdin 50 functions
// more, which are looked up, too. The unwinder allocates for them while it holds a lock: in __register_frame since GCC 13,
// before that at the first look.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void __register_frame(void *);
extern const void *_Unwind_Find_FDE(void *, void *);

struct __attribute__((packed)) tables {
    unsigned char common[24];   // an entry without a pointer's encoding, and room
    uint32_t length, back;
    uintptr_t start, size;
    unsigned char nothing[4];
    uint32_t end;
};

static int register_one(char *code) {
    static const unsigned char common[] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1};
    void *bases[3];
    struct tables *tables = calloc(1, sizeof *tables);
    if (!tables)
        return 1;
    memcpy(tables->common, common, sizeof common);
    tables->length = 24;
    tables->back = (uint32_t)((char *)&tables->back - (char *)tables);
    tables->start = (uintptr_t)code;
    tables->size = 64;
    __register_frame(tables);
    return _Unwind_Find_FDE(code + 10, bases) != &tables->length;
}

int main(void) {
    char line[16], *code = mmap(NULL, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    while (fgets(line, sizeof line, stdin)) {
        int failed = 0;
        alarm(20);   // whoever waits for itself
        for (int i = 0; i < 50; i++, code += 64)
            failed += register_one(code);
        alarm(0);
        puts(failed ? "failed" : "done");
        fflush(stdout);
    }
    return 0;
}
