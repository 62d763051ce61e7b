// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// swap FIRST SECOND: leaks through one plugin, closes it, and leaks through another, which the loader puts in its place.
// Prints where each one's code was.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        void *plugin = dlopen(arguments[i], RTLD_NOW);
        void (*leak)(void) = plugin ? (void (*)(void))(uintptr_t)dlsym(plugin, "plugin_leak") : NULL;
        if (!leak)
            return 1;
        for (int n = 0; n < 2000; n++) {
            if (n % 1000 == 0)
                sleep(2);   // until the agent has seen that it is there, and again, to meet what it remembers of it
            leak();
        }
        printf("%#lx\n", (unsigned long)(uintptr_t)leak);
        sleep(3);   // until the agent has looked at what is mapped
        if (i + 1 < count)
            dlclose(plugin);
    }
    fflush(stdout);
    pause();
}
