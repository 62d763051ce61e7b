// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Keeps the last problem for `status`. The first one also goes to stderr (the journal) if it happens while the agent
// starts. Stderr is the service's: if it means another file than at the start, nothing is written, nor to a pipe that
// nobody reads (SIGPIPE would end the service) or that is full (the service would wait).
#include "problem.h"

#include "clock.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static struct stat standard_error;   // as it was when the process started
static bool had_one;

void problem_remember_stderr(void) {
    had_one = fstat(2, &standard_error) == 0;
}

static bool stderr_is_the_same(void) {
    struct stat now;
    return had_one && fstat(2, &now) == 0 && now.st_dev == standard_error.st_dev && now.st_ino == standard_error.st_ino;
}

static bool stderr_is_ready(void) {
    struct pollfd file = {.fd = 2, .events = POLLOUT};
    return poll(&file, 1, 0) == 1 && file.revents == POLLOUT;
}

void problem_note(struct problem *problem, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    problem->time = clock_now();
    if (problem->quiet || !stderr_is_the_same() || !stderr_is_ready())
        return;
    char line[sizeof problem->text + 16];
    int length = snprintf(line, sizeof line, "offheap: %s\n", problem->text);
    problem->quiet = true;
    if (length > 0)
        (void)!write(2, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}
