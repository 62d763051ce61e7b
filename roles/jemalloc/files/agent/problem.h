// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What went wrong. Problems never end the process, and its stderr gets one line at most.
#ifndef OFFHEAP_PROBLEM_H
#define OFFHEAP_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

struct problem {
    char text[512];   // the last one; "" if there was none
    int64_t time;     // epoch milliseconds
    bool quiet;       // the one line on stderr is written, or the time for it is over
};

void problem_remember_stderr(void);   // when the process starts, before it can replace its stderr
void problem_note(struct problem *problem, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
