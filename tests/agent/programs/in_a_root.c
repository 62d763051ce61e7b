// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Changes its root directory to the first argument, its user to the second, if there are any, and waits.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count > 1 && (chroot(words[1]) || chdir("/")))
        return 1;
    if (count > 2 && setuid((uid_t)atoi(words[2])))
        return 2;
    printf("waits\n");
    fflush(stdout);
    return poll(NULL, 0, -1);
}
