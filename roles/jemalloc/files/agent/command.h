// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A line in, an answer out.
#ifndef OFFHEAP_COMMAND_H
#define OFFHEAP_COMMAND_H

#include "config.h"
#include "dump.h"
#include "facts.h"
#include "json.h"
#include "problem.h"
#include "sampling.h"
#include "schedule.h"
#include "spool.h"

#define PROTOCOL 1

struct command {   // what the commands show and change
    const struct config *config;
    const struct facts *facts;
    const struct problem *problem;
    const struct spool *spool;
    struct dumps *dumps;
    struct sampling *sampling;
    struct schedule *schedule;
    bool *leaving;   // the thread of an attached agent is to end; NULL: it came with the process, and stays
};

// Of an attached agent: how many entries it put back, and how many it could not. False if there are any of these: then it
// stays.
bool command_detach(const struct command *command, size_t *put_back, size_t *left);
void command_run(const struct command *command, char *line, struct json *answer);

#endif
