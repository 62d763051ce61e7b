// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A program with a pointer that an agent may lead to itself. It waits, and is built to show the pointer (-rdynamic).
#include <poll.h>
#include <stdio.h>

void *hook = (void *)1;

int main(void) {
    printf("waits\n");
    fflush(stdout);
    return poll(NULL, 0, -1);
}
