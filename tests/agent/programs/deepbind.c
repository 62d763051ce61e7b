// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// deepbind CROSS: opens libdeepbind_library.so with RTLD_DEEPBIND in its search path, says whose names that finds first
// and, if CROSS is not 0, frees what it allocated and has it free what this allocated. Ends with 0 when all went well.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

const char *who(void);
__attribute__((noinline, visibility("default"))) const char *who(void) { return "program"; }

int main(int count, char **words) {
    const char *(*asked)(void);
    void *(*allocate)(void);
    void (*release)(void *);
    void *library = dlopen("libdeepbind_library.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&asked = dlsym(library, "asked");
    *(void **)&allocate = dlsym(library, "allocate");
    *(void **)&release = dlsym(library, "release");
    printf("%s\n", asked());
    fflush(stdout);
    if (count > 1 && atoi(words[1])) {
        free(allocate());
        release(malloc(100));
    }
    return 0;
}
