// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A library that somebody preloads into their service for their own reasons. Profiling must not remove it. The mapping
// /memfd:legacy-marker shows from outside that its constructor ran.

#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

__attribute__((constructor)) static void mark(void)
{
    int fd = memfd_create("legacy-marker", MFD_CLOEXEC);
    if (fd < 0)
        return;
    if (ftruncate(fd, 4096) == 0)
        (void)mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
}
