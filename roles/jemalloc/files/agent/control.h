// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The control socket.
#ifndef OFFHEAP_CONTROL_H
#define OFFHEAP_CONTROL_H

#include "command.h"
#include "config.h"
#include "descriptors.h"
#include "problem.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CONTROL_CLIENTS 8
#define CONTROL_LINE 256

struct client {
    struct owned socket;
    int64_t deadline;
    size_t length;
    char line[CONTROL_LINE];
};

struct control {
    const struct config *config;
    const struct command *command;
    struct problem *problem;
    pid_t pid;
    struct owned socket;
    char path[2 * PATH_MAX];
    bool abstract;         // it has no path
    ino_t path_inode;      // 0: the file is not ours
    int64_t next_check;
    struct client clients[CONTROL_CLIENTS];
};

void control_prepare(struct control *control);   // no socket and no clients yet
void control_open(struct control *control);
void control_wait(struct control *control, int64_t milliseconds);   // serves clients for at most so long
void control_close(struct control *control);   // and its clients, for good
void control_forget_in_child(struct control *control);   // after a fork: the socket and its file are the parent's
void control_unlink(const struct control *control);

#endif
