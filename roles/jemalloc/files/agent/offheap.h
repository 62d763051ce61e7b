// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What the parts of the agent know of each other. The rules that hold in all of them:
//
// - Everything but the unwinder and the fork handler runs in the agent's own thread, so nothing else needs a lock.
// - Nothing is written to a descriptor that is not known to be ours, nothing is printed, nothing aborts.
// - No malloc of our own: static buffers, so that the agent is no load on the heap that it observes.
#ifndef OFFHEAP_H
#define OFFHEAP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define AGENT_VERSION "1.0.0"
#define PROTOCOL 1

// ---- config.c: the environment, copied (a service may overwrite its environment's memory, setproctitle does)

enum unwinder { UNWINDER_HYBRID, UNWINDER_FP, UNWINDER_BUILTIN };

struct config {
    char executable[PATH_MAX];
    char unit[256];
    char socket_directory[PATH_MAX];
    char malloc_conf[1024];
    enum unwinder unwinder;
    bool dormant;            // sampling stays off until it is asked for
    bool children;           // children with the same executable are profiled too
    int64_t start_delay;     // seconds, as the next two; 0 is never for the schedule
    int64_t dump_seconds;
    int64_t stats_seconds;
    int64_t keep_files;
    int64_t keep_bytes;
    int64_t minimum_free;    // bytes that a dump must leave free on the spool's file system
    char ignored[128];       // the first setting that made no sense
};

extern const char *const unwinder_names[];
bool config_is_right_process(void);
void config_read(struct config *config);
bool config_number(const char *text, int64_t low, int64_t high, int64_t *value);

// ---- descriptors.c: files of our own, in a process that may close or reuse any of them

struct owned {
    int fd;          // -1: none
    dev_t device;
    ino_t inode;
};

bool owned_take(struct owned *owned, int fd);   // remembers which file it is
bool owned_still(const struct owned *owned);    // the descriptor still means that file
void owned_close(struct owned *owned);          // closes it if so
bool descriptors_isolate(void);                 // gives this thread a table (and a working directory) of its own
void descriptors_silence(void);                 // lets go of the service's stderr

// ---- jemalloc.c: mallctl with types. All are false (or NULL, 0) when this jemalloc has no such name.

bool je_present(void);
bool je_get_bool(const char *name, bool *value);
bool je_set_bool(const char *name, bool value);
bool je_get_size(const char *name, size_t *value);
const char *je_get_string(const char *name);
bool je_dump(void);
bool je_reset(const size_t *lg_sample);
bool je_install_hook(void (*hook)(void **, unsigned *, unsigned));
void je_refresh_statistics(void);

// ---- unwind.c: the backtrace hook

void unwind_find_libgcc(void);
// Lets libgcc's unwinder set itself up and installs the hook. Returns what will be used; *why is set when it is not `wanted`.
enum unwinder unwind_prepare(enum unwinder wanted, const char **why);
void unwind_hook(void **frames, unsigned *length, unsigned limit);

struct unwind_counts {
    uint64_t walks;       // stacks taken
    uint64_t continued;   // of them, those that frame pointers carried on
    uint64_t off_stack;   // not continued: on another stack than the thread's own
    uint64_t unmapped;    // ended by a frame in no executable mapping
};
void unwind_read_counts(struct unwind_counts *counts);

// ---- ranges.c: where code lies

struct code {
    uintptr_t start, end;
};

// From any thread, without a lock. *last is where the walk's last address was: the next one is mostly there too.
bool ranges_executable(uintptr_t address, struct code *last);
bool ranges_refresh(void);                   // reads the process's maps; true when something is new
bool ranges_wanted(void);                    // whether an address was not found since the last refresh

// ---- hotspot.c: frames of HotSpot's interpreter

#define HOTSPOT_METHOD 3                       // words below the frame pointer: what the frame interprets
bool hotspot_interprets(uintptr_t address);    // from any thread, without a lock
void hotspot_find(void);                       // looks where the interpreter lies; libjvm is loaded

// ---- maps.c: /proc/self/maps without malloc

struct mapping {
    uintptr_t start, end;
    bool executable, none;   // none: no permission at all (reserved)
    bool anonymous;
    uint64_t offset, inode;
    char *path;              // in the reader's buffer; without " (deleted)"; "" for anonymous memory
};

struct maps_reader {
    struct owned file;
    bool skipping;
    size_t start, length;
    char buffer[2 * PATH_MAX];
};

bool maps_open(struct maps_reader *reader);
bool maps_next(struct maps_reader *reader, struct mapping *mapping);
void maps_close(struct maps_reader *reader);

// ---- json.c: one value into a buffer, or through a buffer into a file

struct json {
    char *buffer;
    size_t capacity, length;
    const struct owned *file;   // NULL: the buffer is all there is
    bool failed;
    bool comma;
};

void json_start(struct json *json, char *buffer, size_t capacity, const struct owned *file);
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
void json_bytes(struct json *json, const char *key, const char *bytes, size_t length);
void json_string(struct json *json, const char *key, const char *text);   // NULL becomes null
void json_signed(struct json *json, const char *key, int64_t value);
void json_unsigned(struct json *json, const char *key, uint64_t value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);
void json_seconds(struct json *json, const char *key, int64_t milliseconds);
bool json_finish(struct json *json);   // a newline, and what is left to write; false when anything was lost

// ---- facts.c: what the process and its jemalloc are, and how much memory they have

void facts_process(struct json *json, bool arguments);
void facts_jemalloc(struct json *json, const struct config *config);
void facts_memory(struct json *json);
void facts_images(struct json *json);
int64_t facts_now(void);         // milliseconds since the epoch
int64_t facts_monotonic(void);   // milliseconds

// ---- spool.c: the directory where dumps land, and its budget

struct spool {
    char directory[PATH_MAX];
    char base[NAME_MAX + 1];    // dumps are <base>.<pid>.<seq>.<kind>.heap
    int64_t files, bytes;       // at the last look
};

bool spool_find(struct spool *spool);
bool spool_newest(struct spool *spool, pid_t pid, int64_t not_before, char *name, size_t size);
void spool_thin(struct spool *spool, pid_t pid, int64_t keep_files, int64_t keep_bytes);

// ---- dump.c

struct dump {
    char path[2 * PATH_MAX];
    int64_t size, time, milliseconds;
    uint64_t sample_interval, objects, bytes;   // the header's totals, as they stand there (not unbiased)
    bool totals;
};

struct agent;
bool dump_take(struct agent *agent, const char *reason, struct dump *dump);   // false: agent->problem says why
void stats_append(struct agent *agent);

// ---- control.c: the socket

#define CLIENTS 8
#define LINE 256

struct client {
    struct owned socket;
    int64_t deadline;
    size_t length;
    char line[LINE];
};

struct control {
    struct owned socket;
    char path[2 * PATH_MAX];
    ino_t path_inode;
    int64_t next_check;
    struct client clients[CLIENTS];
};

void control_open(struct agent *agent);
void control_wait(struct agent *agent, int64_t milliseconds);   // serves clients until then, or shorter
void control_close_in_child(struct control *control);
void control_unlink(const struct control *control);

// ---- command.c: a line in, an answer out

void command_run(struct agent *agent, char *line, struct json *answer);

// ---- agent.c

struct agent {
    struct config config;
    struct spool spool;
    struct control control;
    pid_t pid;
    bool private_descriptors;
    bool begun;                  // the start delay is over
    bool wanted;                 // sampling is, or will be then, on
    enum unwinder unwinder;
    const char *unwinder_why;
    int64_t started, begin_at;   // monotonic milliseconds, as the next two; 0 is never
    int64_t next_dump, next_stats, next_ranges, ranges_pause;
    bool quiet;                  // the one line of trouble was told, or the time for it is over
    int64_t active_since;        // epoch milliseconds; 0: not active
    int64_t dumps_written, dumps_failed;
    struct dump last;
    char problem[512];           // the last thing that went wrong
    int64_t problem_time;
};

bool agent_set_active(struct agent *agent, bool active);
void agent_schedule(struct agent *agent, const struct config *config);
void agent_problem(struct agent *agent, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
