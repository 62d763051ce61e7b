// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// held_blocks MIB: after a line, allocates so much in blocks of 224 bytes: a third in a thousand lists, a third in a
// table, a third that nothing leads to. Says "ready", and waits for another line.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 224
#define LISTS 1000

struct block {
    struct block *next;
    char body[SIZE - sizeof(struct block *)];
};

extern struct block *lists[LISTS], **table;   // not static: what is never read would not be stored
struct block *lists[LISTS], **table;

int main(int count, char **words) {
    if (count != 2 || getchar() < 0)
        return 2;
    size_t blocks = strtoul(words[1], NULL, 10) * (1024 * 1024 / SIZE);
    table = calloc(blocks / 3 + 1, sizeof(struct block *));
    for (size_t i = 0; i < blocks; i++) {
        struct block *made = malloc(sizeof *made);
        memset(made, 0, sizeof *made);
        if (i % 3 == 0) {
            made->next = lists[i % LISTS];
            lists[i % LISTS] = made;
        } else if (i % 3 == 1) {
            table[i / 3] = made;
        }
    }
    puts("ready");
    fflush(stdout);
    return getchar() < 0;
}
