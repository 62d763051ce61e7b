// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The commands: "[offheap/1 ]<command>[ <name>=<value>]...". README.md describes them.
#include "command.h"

#include "book.h"
#include "clock.h"
#include "descriptors.h"
#include "feeder.h"
#include "ledger.h"
#include "probes.h"

#include <stdio.h>
#include <string.h>

static void refuse(struct json *answer, const char *error) {
    json_bool(answer, "ok", false);
    json_string(answer, "error", error);
}

static void put_sampling(const struct command *command, struct json *answer) {
    size_t lg_sample;
    json_bool(answer, "active", feeder_active());
    json_bool(answer, "wanted", command->sampling->wanted);
    if (command->sampling->begun)
        json_null(answer, "begins_in");
    else
        json_seconds(answer, "begins_in", command->sampling->begin_at - clock_monotonic());
    if (feeder_lg_interval(&lg_sample))
        json_unsigned(answer, "lg_sample", lg_sample);
}

static void put_schedule(const struct command *command, struct json *answer) {
    json_open(answer, "schedule", '{');
    json_signed(answer, "dump", command->config->dump_seconds);
    json_signed(answer, "stats", command->config->stats_seconds);
    json_signed(answer, "keep_files", command->config->keep_files);
    json_signed(answer, "keep_bytes", command->config->keep_bytes);
    if (command->schedule->next_dump)
        json_seconds(answer, "next_dump_in", command->schedule->next_dump - clock_monotonic());
    else
        json_null(answer, "next_dump_in");
    json_close(answer, '}');
}

static void put_dump(const struct dump *dump, struct json *answer) {
    json_string(answer, "path", dump->path);
    json_signed(answer, "size", dump->size);
    json_seconds(answer, "time", dump->time);
    json_seconds(answer, "duration", dump->milliseconds);
    if (dump->totals) {   // as in the dump's header: not unbiased
        json_unsigned(answer, "sample_interval", dump->sample_interval);
        json_unsigned(answer, "objects", dump->objects);
        json_unsigned(answer, "bytes", dump->bytes);
    }
}

static void status(const struct command *command, struct json *answer) {
    struct unwind_counts counts;
    json_bool(answer, "ok", true);
    json_string(answer, "agent", AGENT_VERSION);
    json_string(answer, "unit", *command->config->unit ? command->config->unit : NULL);
    facts_process(answer, false);
    json_seconds(answer, "uptime", clock_monotonic() - command->facts->started);
    put_sampling(command, answer);
    feeder_describe(answer);
    json_bool(answer, "traced", probes_attached());
    json_open(answer, "unwinder", '{');
    json_string(answer, "wanted", unwinder_names[command->config->unwinder]);
    json_string(answer, "used", command->sampling->begun ? unwinder_names[command->facts->unwinder] : NULL);
    json_string(answer, "why", command->sampling->unwinder_why);
    unwind_read_counts(&counts);
    json_unsigned(answer, "walks", counts.walks);
    json_unsigned(answer, "by_libgcc", counts.by_libgcc);
    json_unsigned(answer, "continued", counts.continued);
    json_unsigned(answer, "off_stack", counts.off_stack);
    json_unsigned(answer, "unmapped", counts.unmapped);
    json_close(answer, '}');
    put_schedule(command, answer);
    json_open(answer, "spool", '{');
    json_string(answer, "directory", *command->spool->directory ? command->spool->directory : NULL);
    json_signed(answer, "files", command->spool->files);
    json_signed(answer, "bytes", command->spool->bytes);
    json_signed(answer, "dumps_written", command->dumps->written);
    json_signed(answer, "dumps_failed", command->dumps->failed);
    json_close(answer, '}');
    json_open(answer, "last_dump", '{');
    if (*command->dumps->last.path)
        put_dump(&command->dumps->last, answer);
    json_close(answer, '}');
    facts_jemalloc(answer, command->config->malloc_conf);
    json_string(answer, "descriptors", descriptors_are_private() ? "private" : "shared");
    json_string(answer, "ignored", *command->config->ignored ? command->config->ignored : NULL);
    json_string(answer, "problem", *command->problem->text ? command->problem->text : NULL);
    if (*command->problem->text)
        json_seconds(answer, "problem_time", command->problem->time);
}

static void dump_now(const struct command *command, const char *reason, struct json *answer) {
    if (!dump_take(command->dumps, reason)) {
        refuse(answer, command->problem->text);
        return;
    }
    json_bool(answer, "ok", true);
    put_dump(&command->dumps->last, answer);
}

static void look_for_holders(const struct command *command, char *arguments, struct json *answer) {
    struct dumps *dumps = command->dumps;
    int64_t milliseconds = 2000;
    bool known = !arguments || (!strncmp(arguments, "milliseconds=", 13) &&
                                config_number(arguments + 13, 10, 60000, &milliseconds));
    if (!known) {
        refuse(answer, "usage: holders [milliseconds=10..60000]");
        return;
    }
    if (!feeder_active() || !book_is_open()) {
        refuse(answer, "nothing is known of what lives: sampling is off, or this jemalloc tells nobody of what it samples");
        return;
    }
    int64_t left = facts_memory_left();
    if (left >= 0 && left < 2 * HOLDERS_MEMORY) {
        refuse(answer, "too little memory is left to look for holders");
        return;
    }
    dumps->look = milliseconds;
    dumps->told = (struct holders_told){.complete = false};
    dump_now(command, "command", answer);
    dumps->look = 0;
    json_open(answer, "holders", '{');
    json_bool(answer, "complete", dumps->told.complete);
    json_seconds(answer, "duration", dumps->told.milliseconds);
    json_unsigned(answer, "read", dumps->told.read);
    json_unsigned(answer, "swapped", dumps->told.swapped);
    json_unsigned(answer, "samples", dumps->told.samples);
    json_unsigned(answer, "lost", dumps->told.lost);
    json_close(answer, '}');
}

static void switch_sampling(const struct command *command, bool on, struct json *answer) {
    if (!sampling_switch(command->sampling, on)) {
        refuse(answer, command->problem->text);
        return;
    }
    json_bool(answer, "ok", true);
    put_sampling(command, answer);
}

// With a dump before and one after, so that the archive has what became of each part of the memory.
static void trim(const struct command *command, struct json *answer) {
    if (!dump_take(command->dumps, "before-trim")) {
        refuse(answer, command->problem->text);
        return;
    }
    json_open(answer, "before", '{');
    facts_memory(answer);
    json_close(answer, '}');
    int64_t began = clock_monotonic();
    bool given = feeder_trim();
    json_bool(answer, "given_back", given);
    json_seconds(answer, "trim_duration", clock_monotonic() - began);
    json_open(answer, "after", '{');
    facts_memory(answer);
    json_close(answer, '}');
    dump_now(command, "trim", answer);
}

// The sample interval stays: each thread keeps the distance to its next sample, which it drew at the old one.
static void reset(const struct command *command, struct json *answer) {
    const char *why;
    if (sampling_reset(command->sampling, &why))
        json_bool(answer, "ok", true);
    else
        refuse(answer, why);
}

bool command_detach(const struct command *command, size_t *put_back, size_t *left) {
    sampling_switch(command->sampling, false);
    *put_back = feeder_detach(left);
    *command->leaving = !*left;
    return !*left;
}

static void detach(const struct command *command, struct json *answer) {
    size_t left, put_back;
    if (!command->leaving) {
        refuse(answer, "this agent was not attached: it came with the process, and stays");
        return;
    }
    if (command_detach(command, &put_back, &left))
        json_bool(answer, "ok", true);
    else
        refuse(answer, "entries could not be put back: the kernel did not open their pages");
    json_unsigned(answer, "put_back", put_back);
    json_unsigned(answer, "left", left);
}

static void schedule(const struct command *command, char *arguments, struct json *answer) {
    struct config config = *command->config;
    const struct {
        const char *name;
        int64_t low, high, *value;
    } settings[] = {{"dump", 0, 366 * 86400, &config.dump_seconds},
                    {"stats", 0, 366 * 86400, &config.stats_seconds},
                    {"keep_files", 2, 1000, &config.keep_files},
                    {"keep_bytes", 1, INT64_MAX, &config.keep_bytes}};
    char *rest = arguments;
    for (char *word; rest && (word = strtok_r(NULL, " ", &rest));) {
        char *value = strchr(word, '=');
        bool known = false;
        if (value)
            *value++ = '\0';
        for (size_t i = 0; value && i < sizeof settings / sizeof *settings; i++)
            known |= !strcmp(word, settings[i].name) &&
                     config_number(value, settings[i].low, settings[i].high, settings[i].value);
        if (!known) {
            refuse(answer, "usage: schedule [dump=SECONDS] [stats=SECONDS] [keep_files=2..1000] [keep_bytes=BYTES]");
            return;
        }
    }
    schedule_change(command->schedule, &config);
    json_bool(answer, "ok", true);
    put_schedule(command, answer);
}

void command_run(const struct command *command, char *line, struct json *answer) {
    static const char name[] = "offheap/", version[] = "offheap/1 ";
    line[strcspn(line, "\r")] = '\0';
    if (!strncmp(line, version, sizeof version - 1)) {
        line += sizeof version - 1;
    } else if (!strncmp(line, name, sizeof name - 1)) {
        refuse(answer, "this agent speaks offheap/1");
        return;
    }
    char *arguments = strchr(line, ' ');
    if (arguments)
        *arguments++ = '\0';
    if (!strcmp(line, "status") && !arguments) {
        status(command, answer);
    } else if (!strcmp(line, "dump") && !arguments) {
        dump_now(command, "command", answer);
    } else if (!strcmp(line, "trim") && !arguments) {
        trim(command, answer);
    } else if ((!strcmp(line, "activate") || !strcmp(line, "deactivate")) && !arguments) {
        switch_sampling(command, *line == 'a', answer);
    } else if (!strcmp(line, "reset") && !arguments) {
        reset(command, answer);
    } else if (!strcmp(line, "detach") && !arguments) {
        detach(command, answer);
    } else if (!strcmp(line, "stats") && !arguments) {
        json_bool(answer, "ok", true);
        json_seconds(answer, "time", clock_now());
        facts_memory(answer);
    } else if (!strcmp(line, "holders")) {
        look_for_holders(command, arguments, answer);
    } else if (!strcmp(line, "schedule")) {
        schedule(command, arguments, answer);
    } else {
        refuse(answer, "commands: status dump holders trim activate deactivate reset stats schedule detach");
    }
}
