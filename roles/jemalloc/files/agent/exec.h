// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What is preloaded stays so when the service starts itself with a new environment.
#ifndef OFFHEAP_EXEC_H
#define OFFHEAP_EXEC_H

#include <stdbool.h>

void exec_prepare(void);                      // in every process, first of all
void exec_remember(const char *executable);   // the variables of this process, before anything changes them
void exec_is_profiled(void);                  // from now on only the executable itself is given them
// Puts a variable before all others, since a program that writes its title over its environment may take the last one
// for the end of it (avahi). Keeps the pointer.
void exec_add_first(char *variable);
void exec_leave_environment(void);            // the other programs that it starts will not have ours
// What to do in this process before it becomes another program; nothing that a signal handler could not do. A child does
// so only if it says so itself.
void exec_before(void (*leave)(void));

#endif
