// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A library that deepbind.c opens: it allocates what others free, and frees what others allocate.
#include <stdlib.h>

const char *who(void);
const char *asked(void);
void *allocate(void);
void release(void *);

const char *who(void) { return "library"; }

// The program has a function of the same name. It is called, unless this library's own names come first.
const char *asked(void) { return who(); }

void *allocate(void) { return malloc(100); }

void release(void *block) { free(block); }
