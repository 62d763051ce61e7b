// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Files of our own, in a process that may close or reuse any descriptor. A descriptor that is not known to be ours is
// never written to and never closed.
#ifndef OFFHEAP_DESCRIPTORS_H
#define OFFHEAP_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

struct owned {
    int fd;          // -1: none
    dev_t device;
    ino_t inode;
};

// A path below /proc, for the agent's thread, until the next call. What is the main thread's there has no memory, and no
// files, once that thread has ended (pthread_exit).
const char *owned_process(const char *name);
bool owned_take(struct owned *owned, int fd);   // remembers which file it is
bool owned_still(const struct owned *owned);    // the descriptor still means that file
void owned_close(struct owned *owned);          // closes it if so
// Calls `visit` with each name in a directory. False if it cannot be read to the end. Not by opendir, which allocates and
// later closes whatever its descriptor means by then.
bool owned_list(const char *path, void (*visit)(void *context, const struct owned *directory, const char *name),
                void *context);
// The address of a socket at this path. One that is too long for it leads through `directory`, which the caller closes.
bool owned_address(const char *path, struct sockaddr_un *address, struct owned *directory);
void descriptors_remember_filters(void);        // of system calls, those of the start
ssize_t owned_slurp(const char *path, char *text, size_t size);   // a small file with a NUL behind it; its length or -1
int64_t owned_stat(const char *path, int field);   // a number in a process's or thread's stat (proc(5)), from the third; or -1
// Gives this thread a table (and a working directory) of its own, unless a filter of system calls may kill for it: any
// but those of the start, if `may_unshare` says that they do not, or the process has a message queue open.
bool descriptors_isolate(bool may_unshare);
bool descriptors_are_private(void);             // whether it has them
void descriptors_silence(void);                 // lets go of the service's stderr

#endif
