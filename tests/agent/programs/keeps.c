// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A service whose allocator keeps what was freed: keeps MIB. For each line on stdin it allocates so much in small blocks,
// frees all but the last, below which nothing can be given back by itself, and answers with a line.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 1000

int main(int count, char **words) {
    char line[16];
    if (count != 2)
        return 2;
    size_t blocks = (size_t)atoi(words[1]) * 1048576 / BLOCK;
    char **all = malloc(blocks * sizeof *all);
    setvbuf(stdout, NULL, _IONBF, 0);
    while (all && fgets(line, sizeof line, stdin)) {
        for (size_t i = 0; i < blocks; i++) {
            all[i] = malloc(BLOCK);
            if (!all[i])
                return 1;
            memset(all[i], 1, BLOCK);
        }
        for (size_t i = 0; i + 1 < blocks; i++)
            free(all[i]);
        puts("done");
    }
    return 0;
}
