// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A daemon that tolerates no other allocator: it runs for a second and aborts if a jemalloc is mapped into it.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int has_mapping(const char *name)
{
    char line[4608];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (maps == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, maps) != NULL)
        found = strstr(line, name) != NULL;
    fclose(maps);
    return found;
}

int main(void)
{
    sleep(1);
    if (has_mapping("jemalloc")) {
        fputs("fragile: this allocator is not mine\n", stderr);
        abort();
    }
    for (;;)
        pause();
}
