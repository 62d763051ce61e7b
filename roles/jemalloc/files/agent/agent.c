// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The agent's life. The constructor decides whether this is the process that is meant, and starts one thread; the
// thread opens the control socket, switches sampling on some seconds later, keeps the schedule and serves clients.
#include "offheap.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define STACK (256 << 10)       // more where libc takes much of it for thread-local storage
#define RANGES_PAUSE 1000        // milliseconds between two looks at the maps when addresses are not found
#define RANGES_PAUSE_MAX 64000   // the same, when looking never helps

static struct agent agent;
static struct owned standard_error;   // as it was when the process started; not ours, only for one line
static char owner[40];

void agent_problem(struct agent *self, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->problem, sizeof self->problem, format, arguments);
    va_end(arguments);
    self->problem_time = facts_now();
    struct stat now;
    if (self->quiet || standard_error.fd < 0 || fstat(2, &now) < 0 || now.st_dev != standard_error.device ||
        now.st_ino != standard_error.inode)
        return;
    char line[sizeof self->problem + 16];
    int length = snprintf(line, sizeof line, "offheap: %s\n", self->problem);
    self->quiet = true;
    if (length > 0)
        (void)!write(2, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

static void note_activity(struct agent *self) {
    bool active = false;
    je_get_bool("prof.active", &active);
    if (!active)
        self->active_since = 0;
    else if (!self->active_since)
        self->active_since = facts_now();
}

bool agent_set_active(struct agent *self, bool active) {
    self->wanted = active;
    if (!self->begun)
        return true;   // not before static initialisation is over
    bool done = je_set_bool("prof.active", active);
    if (!done)
        agent_problem(self, "jemalloc does not let prof.active be set");
    note_activity(self);
    return done;
}

void agent_schedule(struct agent *self, const struct config *config) {
    int64_t now = facts_monotonic();
    if (config->dump_seconds != self->config.dump_seconds || !self->next_dump)
        self->next_dump = config->dump_seconds ? now + config->dump_seconds * 1000 : 0;
    if (config->stats_seconds != self->config.stats_seconds || !self->next_stats)
        self->next_stats = config->stats_seconds ? now + config->stats_seconds * 1000 : 0;
    self->config = *config;
}

static void begin(struct agent *self) {
    self->begun = true;
    self->unwinder = unwind_prepare(self->config.unwinder, &self->unwinder_why);
    if (self->wanted)
        agent_set_active(self, true);
    note_activity(self);
    self->ranges_pause = RANGES_PAUSE;
    agent_schedule(self, &self->config);
}

static bool is_due(int64_t *when, int64_t period, int64_t now) {
    if (!*when || now < *when)
        return false;
    *when += period;
    if (*when <= now)
        *when = now + period;   // late by more than a period: the machine slept
    return true;
}

static int64_t earlier(int64_t one, int64_t other) {
    return other && other < one ? other : one;
}

// Does what is due; returns how long there is nothing to do, in milliseconds.
static int64_t work(struct agent *self) {
    int64_t now = facts_monotonic(), next = now + 3600000;
    if (!self->begun) {
        if (now < self->begin_at)
            return self->begin_at - now;
        begin(self);
    }
    if (is_due(&self->next_dump, self->config.dump_seconds * 1000, now)) {
        struct dump dump;
        dump_take(self, "schedule", &dump);
    }
    if (is_due(&self->next_stats, self->config.stats_seconds * 1000, now))
        stats_append(self);
    if (self->active_since && self->unwinder != UNWINDER_BUILTIN) {
        if (now >= self->next_ranges && ranges_wanted()) {
            bool news = ranges_refresh();
            self->ranges_pause = news ? RANGES_PAUSE : self->ranges_pause * 2;
            if (self->ranges_pause > RANGES_PAUSE_MAX)
                self->ranges_pause = RANGES_PAUSE_MAX;
            self->next_ranges = now + self->ranges_pause;
        }
        next = now + RANGES_PAUSE;
    }
    next = earlier(earlier(next, self->next_dump), self->next_stats);
    now = facts_monotonic();
    return next > now ? next - now : 0;
}

static void *run(void *argument) {
    struct agent *self = argument;
    prctl(PR_SET_NAME, "offheap");
    self->private_descriptors = descriptors_isolate();
    je_set_bool("thread.prof.active", false);
    control_open(self);
    if (!spool_find(&self->spool))
        agent_problem(self, "prof_prefix in MALLOC_CONF is not an absolute path: there will be no dumps");
    else if (access(self->spool.directory, W_OK | X_OK) < 0)
        agent_problem(self, "spool %s: %s", self->spool.directory, strerror(errno));
    else
        spool_thin(&self->spool, self->pid, self->config.keep_files, self->config.keep_bytes);
    self->quiet = true;
    descriptors_silence();
    for (;;)
        control_wait(self, work(self));
    return NULL;
}

// False when there is nothing to do here; the reason has been told.
static bool launch(struct agent *self) {
    bool prof = false;
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    self->pid = getpid();
    self->started = facts_monotonic();
    self->begin_at = self->started + self->config.start_delay * 1000;
    self->control.socket.fd = -1;
    for (int i = 0; i < CLIENTS; i++)
        self->control.clients[i].socket.fd = -1;
    if (!je_present()) {
        agent_problem(self, "there is no jemalloc in this process: it runs unprofiled");
        return false;
    }
    if (!je_get_bool("config.prof", &prof) || !prof) {
        agent_problem(self, "this jemalloc was built without profiling: the process runs unprofiled");
        return false;
    }
    if (!je_get_bool("opt.prof", &prof) || !prof) {
        agent_problem(self, "MALLOC_CONF does not say prof:true: the process runs unprofiled");
        return false;
    }
    bool active = false;
    je_get_bool("prof.active", &active);
    self->wanted = active || !self->config.dormant;
    // Signals stay the service's own affair. A thread inherits the mask that it is created under.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int error = EINVAL;
    for (size_t size = STACK; error == EINVAL && size <= 64 * STACK; size *= 8) {
        pthread_attr_setstacksize(&attributes, size);
        error = pthread_create(&thread, &attributes, run, self);
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        agent_problem(self, "no thread for the agent: %s", strerror(error));
    return !error;
}

// In a child that was forked and has not called exec. Our thread is not in it.
static void after_fork_in_child(void) {
    struct control *control = &agent.control;
    je_set_bool("prof.active", false);
    if (!agent.private_descriptors)
        control_close_in_child(control);
    control->path_inode = 0;   // the socket's file is the parent's
    agent.pid = 0;
    if (!agent.config.children)
        return;
    struct config config = agent.config;
    memset(&agent, 0, sizeof agent);
    agent.config = config;
    launch(&agent);
}

__attribute__((constructor)) static void start(void) {
    struct stat status;
    if (!config_is_right_process())
        return;
    standard_error = (struct owned){.fd = -1};
    if (fstat(2, &status) == 0)
        standard_error = (struct owned){.fd = 2, .device = status.st_dev, .inode = status.st_ino};
    config_read(&agent.config);
    if (*agent.config.ignored)
        agent_problem(&agent, "%s: ignored", agent.config.ignored);
    snprintf(owner, sizeof owner, "OFFHEAP_OWNER=%d", (int)getpid());
    putenv(owner);
    // After mallctl has been called once, so that jemalloc's own handlers come first in a child.
    bool prof;
    je_get_bool("config.prof", &prof);
    if (agent.config.unwinder == UNWINDER_HYBRID && je_present())
        unwind_find_libgcc();
    if (launch(&agent))
        pthread_atfork(NULL, NULL, after_fork_in_child);
}

__attribute__((destructor)) static void stop(void) {
    if (agent.pid && agent.pid == getpid())
        control_unlink(&agent.control);
}
