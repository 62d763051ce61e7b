// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// waiting_workers WORKERS BLOCKS: takes one byte of stdin, forgets so many blocks of 1,000 bytes, forks so many workers
// and says their pids. Each takes a byte, forgets as many blocks, says so by a dot, and stays.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void forget(int blocks) {
    char byte;
    if (read(0, &byte, 1) != 1) _exit(1);
    for (int i = 0; i < blocks; i++) *(void *volatile *)malloc(1000) = NULL;
}

static void work(int blocks) {
    forget(blocks);
    if (write(1, ".", 1) != 1) _exit(1);
    for (;;) pause();
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int workers = atoi(arguments[1]), blocks = atoi(arguments[2]);
    char text[1024];
    size_t length = 0;
    forget(blocks);
    for (int i = 0; i < workers; i++) {
        pid_t child = fork();
        if (!child) work(blocks);
        length += (size_t)snprintf(text + length, sizeof text - length, "%d ", (int)child);
    }
    text[length - 1] = '\n';
    if (write(1, text, length) != (ssize_t)length) return 1;
    for (;;) pause();
}
