// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A program with a pointer that an agent may lead to itself. It waits, and is built to show the pointer (-rdynamic).
// Before, it changes its root directory to the first argument, and its user to the second, if there are any.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *hook = (void *)1;

int main(int count, char **words) {
    if (count > 1 && (chroot(words[1]) || chdir("/")))
        return 1;
    if (count > 2 && setuid((uid_t)atoi(words[2])))
        return 2;
    printf("waits\n");
    fflush(stdout);
    return poll(NULL, 0, -1);
}
