// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A library that a program needs, and so is initialised before what is preloaded: it opens another one then. Says
// whether that was before the agent's constructor, which sets a variable.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int early(void);

int early(void) { return 0; }

__attribute__((constructor)) static void start(void) {
    void *library = dlopen("libdeepbind_library.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void (*release)(void *);
    if (!library) exit(1);
    *(void **)&release = dlsym(library, "release");
    release(malloc(100));
    printf("%s the agent\n", getenv("OFFHEAP_OWNER") ? "after" : "before");
}
