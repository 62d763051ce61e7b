// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The agent's life. The constructor decides whether this is the process that is meant, and starts one thread; in a process
// that runs already, offheap_attach does it. The thread opens the control socket, switches sampling on some seconds later, keeps the schedule and serves clients.
//
// Rules for every part:
//
// - Everything but the unwinder and the fork handler runs in that thread, so nothing else needs a lock.
// - The agent writes only to descriptors that it knows to be its own, prints nothing and never aborts.
// - It calls no malloc: static buffers keep it out of the heap that it observes.
#include "clock.h"
#include "command.h"
#include "config.h"
#include "control.h"
#include "cost.h"
#include "descriptors.h"
#include "dump.h"
#include "exec.h"
#include "facts.h"
#include "feeder.h"
#include "loader.h"
#include "mallctl.h"
#include "maps.h"
#include "problem.h"
#include "sampler.h"
#include "sampling.h"
#include "schedule.h"
#include "spool.h"
#include "statistics.h"
#include "threads.h"
#include "trigger.h"
#include "unwind.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 3600000     // milliseconds without a look at what is due
#define LEAVE_AGAIN 60000   // milliseconds between two tries to detach by itself
#define PATIENCE 1          // seconds that a process may start later

struct agent {
    pid_t pid;
    bool attached;   // to a process that ran already
    bool leaving;    // the thread is to end
    int64_t detach_at;   // 0: when it is told to
    struct config config;
    struct problem problem;
    struct facts facts;
    struct spool spool;
    struct dumps dumps;
    struct sampling sampling;
    struct cost cost;
    struct schedule schedule;
    struct trigger trigger;
    struct command command;
    struct control control;
    sem_t ready;   // the thread has what it opens
};

static struct agent agent;
static atomic_bool taken;   // this process has an agent, or is about to
static char owner[40];      // the environment keeps a pointer to it

static int64_t earlier(int64_t one, int64_t other) {
    return other && other < one ? other : one;
}

// Whoever attached it may have gone.
static int64_t leave_if_due(struct agent *self, int64_t now) {
    size_t put_back, left;
    if (self->detach_at && now >= self->detach_at) {
        command_detach(&self->command, &put_back, &left);
        self->detach_at = now + LEAVE_AGAIN;   // if it could not
    }
    return self->detach_at;
}

// What was seen until then is a dump.
static bool end_if_too_dear(struct agent *self, int64_t now) {
    if (!cost_is_too_high(&self->cost, now))
        return false;
    self->cost.next = 0;
    self->detach_at = now;
    return true;
}

// Does what is due, and returns how many milliseconds there is nothing more to do.
static int64_t work(struct agent *self) {
    int64_t now = clock_monotonic();
    if (!self->sampling.begun) {
        if (now < self->sampling.begin_at)
            return self->sampling.begin_at - now;
        sampling_begin(&self->sampling);
        schedule_change(&self->schedule, &self->config);
    }
    const char *reason = end_if_too_dear(self, now) ? "cost"
                         : schedule_dump_is_due(&self->schedule, now) ? "schedule" : trigger_reason(&self->trigger, now);
    if (reason) {
        dump_take(&self->dumps, reason);
        trigger_dumped(&self->trigger, clock_monotonic() - now);
    }
    if (schedule_stats_are_due(&self->schedule, now))
        statistics_append(&self->spool, &self->problem);
    int64_t next = earlier(now + LONGEST, sampling_work(&self->sampling, now));
    next = earlier(next, schedule_next(&self->schedule));
    next = earlier(next, trigger_next(&self->trigger));
    next = earlier(next, cost_next(&self->cost));
    next = earlier(next, leave_if_due(self, now));
    now = clock_monotonic();
    return next > now ? next - now : 0;
}

static void *run(void *argument) {
    struct agent *self = argument;
    prctl(PR_SET_NAME, "offheap");
    if (self->attached)
        descriptors_remember_filters();
    descriptors_isolate(self->config.may_unshare);
    feeder_leave_out_this_thread();
    control_open(&self->control);
    trigger_prepare(&self->trigger);
    char start[32];
    facts_start(start, sizeof start);
    const char *prefix = feeder_is_sampler() ? self->config.prefix : je_get_string("opt.prof_prefix");
    if (!spool_find(&self->spool, prefix, start, self->pid))
        problem_note(&self->problem, "%s is not an absolute path, or too long: there will be no dumps",
                     feeder_is_sampler() ? "OFFHEAP_PREFIX" : "prof_prefix in MALLOC_CONF");
    else if (access(self->spool.directory, W_OK | X_OK) < 0)
        problem_note(&self->problem, "spool %s: %s", self->spool.directory, strerror(errno));
    else
        spool_thin(&self->spool, self->config.keep_files, self->config.keep_bytes);
    self->problem.quiet = true;
    descriptors_silence();
    sem_post(&self->ready);
    while (!self->leaving)
        control_wait(&self->control, work(self));
    control_close(&self->control);
    trigger_close(&self->trigger);
    atomic_store(&taken, false);
    return NULL;
}

// Gives each part what it needs of the others.
static void connect_parts(struct agent *self) {
    struct sampling *sampling = &self->sampling;
    struct dumps *dumps = &self->dumps;
    struct control *control = &self->control;
    sampling->config = &self->config;
    sampling->facts = &self->facts;
    sampling->problem = &self->problem;
    self->schedule.config = &self->config;
    self->trigger.config = &self->config;
    self->trigger.facts = &self->facts;
    dumps->config = &self->config;
    dumps->facts = &self->facts;
    dumps->spool = &self->spool;
    dumps->problem = &self->problem;
    self->command = (struct command){.config = &self->config,
                                     .facts = &self->facts,
                                     .problem = &self->problem,
                                     .spool = &self->spool,
                                     .dumps = dumps,
                                     .sampling = sampling,
                                     .schedule = &self->schedule,
                                     .leaving = self->attached ? &self->leaving : NULL};
    control->config = &self->config;
    control->command = &self->command;
    control->problem = &self->problem;
    control->pid = self->pid;
}

// Why there is nothing to do in this process; NULL if there is something.
static const char *obstacle(void) {
    bool prof = false;
    if (feeder_is_sampler())
        return NULL;
    if (!je_present())
        return "this process has no jemalloc: it runs unprofiled";
    if (!je_get_bool("config.prof", &prof) || !prof)
        return "this jemalloc was built without profiling: the process runs unprofiled";
    if (!je_get_bool("opt.prof", &prof) || !prof)
        return "MALLOC_CONF does not say prof:true: the process runs unprofiled";
    return NULL;
}

// Returns an error number, as pthread_create does.
static int start_thread(struct agent *self) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    // Signals stay the service's own affair. A thread inherits the mask that it is created under.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int error = EINVAL;
    // More where libc takes much of it for thread-local storage.
    for (size_t size = THREADS_OWN_STACK; error == EINVAL && size <= 64 * THREADS_OWN_STACK; size *= 8) {
        pthread_attr_setstacksize(&attributes, size);
        error = pthread_create(&thread, &attributes, run, self);
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

// The service may give up its rights or change its root as soon as it runs; what the thread opens needs both.
static void wait_until_ready(struct agent *self) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE;
    while (sem_timedwait(&self->ready, &until) < 0 && errno == EINTR)
        ;
}

static void prepare(struct agent *self) {
    self->pid = getpid();
    self->facts.started = clock_monotonic();
    connect_parts(self);
    control_prepare(&self->control);
    sem_init(&self->ready, 0, 0);
}

// False when this process has no agent; the reason has been told.
static bool launch(struct agent *self) {
    prepare(self);
    const char *why = obstacle();
    if (why) {
        problem_note(&self->problem, "%s", why);
        return false;
    }
    sampling_prepare(&self->sampling);
    int error = start_thread(self);
    if (error)
        problem_note(&self->problem, "no thread for the agent: %s", strerror(error));
    else
        wait_until_ready(self);
    atomic_store(&taken, !error);
    return !error;
}

__attribute__((destructor)) static void stop(void) {
    if (atomic_load(&taken) && agent.pid == getpid())
        control_unlink(&agent.control);
}

// The process keeps its allocator. False: this kernel cannot keep a book, or there is no memory.
static bool use_sampler(struct config *config) {
    feeder_use_sampler();
    if (config->unwinder == UNWINDER_BUILTIN)
        config->unwinder = UNWINDER_HYBRID;   // it is jemalloc's
    return sampler_prepare((size_t)config->lg_sample);
}

// In a child that was forked and has not called exec. The agent's thread is not in it, and the sampler's hooks pass
// calls on.
static void after_fork_in_child(void) {
    loader_unlock();
    exec_before(NULL);
    je_set_bool("prof.active", false);
    if (atomic_load(&taken)) {
        control_forget_in_child(&agent.control);
        trigger_forget_in_child(&agent.trigger);
    }
    atomic_store(&taken, false);
    if (!agent.config.children)
        return;
    static struct config config;   // a thread that forks may have a stack of 16 KiB, which is less
    config = agent.config;
    memset(&agent, 0, sizeof agent);
    agent.config = config;
    if (feeder_is_sampler() && !use_sampler(&agent.config))
        return;
    if (launch(&agent))
        exec_before(stop);   // most children that call exec do so at once, and nobody would remove their socket
}

// Once in a process, whose children keep it.
static bool handle_forks(void) {
    static bool handled;
    if (!handled)
        handled = !pthread_atfork(loader_lock, loader_unlock, after_fork_in_child);
    return handled;
}

__attribute__((constructor)) static void start(void) {
    exec_prepare();
    const char *executable = getenv("OFFHEAP_EXECUTABLE");
    bool right = config_is_right_process();
    if (executable && (right || !config_is_descendant()))
        exec_remember(executable);
    if (!right)
        return;
    problem_remember_stderr();
    descriptors_remember_filters();
    config_read(&agent.config);
    if (*agent.config.ignored)
        problem_note(&agent.problem, "%s: ignored", agent.config.ignored);
    snprintf(owner, sizeof owner, "OFFHEAP_OWNER=%d", (int)getpid());
    exec_add_first(owner);
    // Handlers of fork run in the order of their registration in a child, and jemalloc's own must come first: it
    // registers them at the latest when mallctl is called.
    bool prof, ready = !*agent.config.prefix || use_sampler(&agent.config);
    je_get_bool("config.prof", &prof);
    if (agent.config.unwinder == UNWINDER_HYBRID && (je_present() || feeder_is_sampler()))
        unwind_find_libgcc();
    exec_is_profiled();
    if (agent.config.unset && !agent.config.children)
        exec_leave_environment();
    if (!ready)
        problem_note(&agent.problem, "the kernel is older than 4.14, or there is no memory: the process runs unprofiled");
    else if (launch(&agent) && handle_forks() && feeder_is_sampler() && !agent.config.dormant)
        sampler_redirect();   // while nobody calls anything
}

// Returns an error number. What takes time, or locks that a service's thread may hold, is left to the agent's thread.
static int attach(struct agent *self, const char *settings) {
    if (!config_use(settings))
        return E2BIG;
    memset(self, 0, sizeof *self);
    config_read(&self->config);
    if (*self->config.prefix != '/')
        return EINVAL;
    self->config.children = false;
    maps_use(self->config.maps);
    if (!use_sampler(&self->config))
        return ENOTSUP;
    if (self->config.unwinder == UNWINDER_HYBRID)
        unwind_find_libgcc();
    if (!handle_forks())
        return ENOMEM;
    self->attached = true;
    self->problem.quiet = true;   // stderr is the service's
    prepare(self);
    if (self->config.detach_seconds)
        self->detach_at = self->facts.started + self->config.detach_seconds * 1000;
    cost_begin(&self->cost, self->config.max_cost, self->facts.started);
    sampling_prepare(&self->sampling);
    return start_thread(self);
}

// Opens the agent in a process that runs already: `settings` are those of the environment, "NAME=value" a line, with
// OFFHEAP_PREFIX and OFFHEAP_LG_SAMPLE for what MALLOC_CONF says elsewhere. The thread that calls it may be one that was
// stopped in the middle of a wait, so it is not kept. Returns 0, or an error number: EBUSY if there is an agent already.
__attribute__((visibility("default"))) int offheap_attach(const char *settings) {
    if (atomic_exchange(&taken, true))
        return EBUSY;
    int error = attach(&agent, settings);
    if (error)
        atomic_store(&taken, false);
    return error;
}
