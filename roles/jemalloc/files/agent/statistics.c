// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// <prefix>.<start>.<pid>.stats.jsonl gets a line at a time. A line costs far less than a dump, so it can be had more often, and
// it shows growth that no dump explains.
#include "statistics.h"

#include "clock.h"
#include "descriptors.h"
#include "facts.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE (1 << 20)   // bytes; a larger file is put aside before the next line, and only one is kept aside

void statistics_append(const struct spool *spool, struct problem *problem) {
    static char buffer[4096];
    char path[sizeof spool->directory + sizeof spool->process + 32], aside[sizeof path + 8];
    struct owned file;
    struct stat status;
    struct json json;
    if (!*spool->directory)
        return;
    spool_as_owner(spool);
    snprintf(path, sizeof path, "%s/%s.stats.jsonl", spool->directory, spool->process);
    snprintf(aside, sizeof aside, "%s.1", path);
    if (stat(path, &status) == 0 && status.st_size > SIZE)
        rename(path, aside);
    if (!owned_take(&file, open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600))) {
        problem_note(problem, "cannot write %s: %s", path, strerror(errno));
        return;
    }
    // The spool may belong to workers, and this process be root: no second name of another file.
    if (fstat(file.fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1) {
        problem_note(problem, "cannot write %s: it is not ours", path);
        owned_close(&file);
        return;
    }
    off_t before = lseek(file.fd, 0, SEEK_END);
    json_start(&json, buffer, sizeof buffer, &file);
    json_open(&json, NULL, '{');
    json_seconds(&json, "time", clock_now());
    facts_memory(&json);
    json_close(&json, '}');
    if (!json_finish(&json)) {
        problem_note(problem, "cannot write %s", path);
        if (owned_still(&file) && before >= 0)
            (void)!ftruncate(file.fd, before);   // no half line on a full disk
    }
    owned_close(&file);
}
