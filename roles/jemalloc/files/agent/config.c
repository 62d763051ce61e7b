// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Reads the settings from the environment, or from a text in a process that runs already, and decides whether this is the process they are meant for. Every child of
// the service inherits LD_PRELOAD and has to decide, so that costs two stat calls and nothing else.
#include "config.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool copy(char *target, size_t size, const char *text) {
    size_t length = text ? strlen(text) : 0;
    if (length >= size)
        length = 0;   // a truncated path would be another path
    if (length)
        memcpy(target, text, length);
    target[length] = '\0';
    return length > 0;
}

bool config_number(const char *text, int64_t low, int64_t high, int64_t *value) {
    if (!text || *text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || *end || number < low || number > high)
        return false;
    *value = number;
    return true;
}

// OFFHEAP_OWNER survives exec: a program started by a process with an agent finds that process's pid in it.
bool config_is_descendant(void) {
    const char *owner = getenv("OFFHEAP_OWNER");
    int64_t pid;
    return owner && config_number(owner, 1, INT32_MAX, &pid) && pid != getpid();
}

static char settings[CONFIG_SETTINGS];   // NAME=value, each with a NUL behind it; empty: it is the environment
static size_t settings_length;

bool config_use(const char *text) {
    size_t length = strlen(text);
    if (length >= sizeof settings)
        return false;
    memcpy(settings, text, length + 1);
    settings_length = length;
    for (size_t i = 0; i < length; i++)
        if (settings[i] == '\n')
            settings[i] = '\0';
    return true;
}

// Not getenv, in a process whose threads may set variables meanwhile.
static const char *setting(const char *name) {
    size_t length = strlen(name);
    if (!settings_length)
        return getenv(name);
    for (size_t at = 0; at < settings_length; at += strlen(settings + at) + 1)
        if (!strncmp(settings + at, name, length) && settings[at + length] == '=')
            return settings + at + length + 1;
    return NULL;
}

static bool is_on(const char *name) {
    const char *text = setting(name);
    return text && !strcmp(text, "1");
}

bool config_is_right_process(void) {
    const char *wanted = getenv("OFFHEAP_EXECUTABLE");
    if (!wanted || !*wanted)
        return false;
    struct stat ours, theirs;
    bool same = stat("/proc/self/exe", &ours) == 0 && stat(wanted, &theirs) == 0 && ours.st_dev == theirs.st_dev &&
                ours.st_ino == theirs.st_ino;
    if (!same) {   // an upgrade replaced the file while we start, or a sandbox hides it: compare names
        char path[PATH_MAX];
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
        if (length <= 0)
            return false;
        path[length] = '\0';
        char *deleted = strstr(path, " (deleted)");
        if (deleted && deleted == path + length - strlen(" (deleted)"))
            *deleted = '\0';
        same = !strcmp(path, wanted);
    }
    return same && (is_on("OFFHEAP_CHILDREN") || !config_is_descendant());
}

static void number(struct config *config, const char *name, int64_t low, int64_t high, int64_t *value) {
    const char *text = setting(name);
    if (text && *text && !config_number(text, low, high, value) && !*config->ignored)
        snprintf(config->ignored, sizeof config->ignored, "%s: not a number from %lld to %lld", name, (long long)low,
                 (long long)high);
}

void config_read(struct config *config) {
    const int64_t year = 366 * 86400;
    const char *text;
    memset(config, 0, sizeof *config);
    copy(config->prefix, sizeof config->prefix, setting("OFFHEAP_PREFIX"));
    copy(config->maps, sizeof config->maps, setting("OFFHEAP_MAPS"));
    config->lg_sample = 19;
    number(config, "OFFHEAP_LG_SAMPLE", 0, 40, &config->lg_sample);
    number(config, "OFFHEAP_DETACH_SECONDS", 0, year, &config->detach_seconds);
    number(config, "OFFHEAP_MAX_COST", 0, 100000, &config->max_cost);
    copy(config->executable, sizeof config->executable, setting("OFFHEAP_EXECUTABLE"));
    copy(config->unit, sizeof config->unit, setting("OFFHEAP_UNIT"));
    copy(config->malloc_conf, sizeof config->malloc_conf, setting("MALLOC_CONF"));
    if (!copy(config->socket_directory, sizeof config->socket_directory, setting("OFFHEAP_SOCKET_DIR")) &&
        *config->unit && !strchr(config->unit, '/'))
        snprintf(config->socket_directory, sizeof config->socket_directory, "/run/offheap/%s", config->unit);
    config->dormant = (text = setting("OFFHEAP_START")) && !strcmp(text, "dormant");
    config->children = is_on("OFFHEAP_CHILDREN");
    config->start_delay = 10;
    config->keep_files = 64;
    config->keep_bytes = 256 << 20;
    config->minimum_free = 64 << 20;
    number(config, "OFFHEAP_START_DELAY", 0, 86400, &config->start_delay);
    number(config, "OFFHEAP_DUMP_SECONDS", 0, year, &config->dump_seconds);
    number(config, "OFFHEAP_STATS_SECONDS", 0, year, &config->stats_seconds);
    number(config, "OFFHEAP_DUMP_GROWTH", 0, 1000, &config->dump_growth);
    config->unset = is_on("OFFHEAP_UNSET");
    config->dump_pressure = is_on("OFFHEAP_DUMP_PRESSURE");
    config->may_unshare = is_on("OFFHEAP_MAY_UNSHARE") && (settings_length || !config_is_descendant());
    number(config, "OFFHEAP_KEEP_FILES", 2, 1000, &config->keep_files);
    number(config, "OFFHEAP_KEEP_BYTES", 1, INT64_MAX, &config->keep_bytes);
    number(config, "OFFHEAP_MINIMUM_FREE", 0, INT64_MAX, &config->minimum_free);
    text = setting("OFFHEAP_UNWINDER");
    for (int i = 0; text && *text; i++) {
        if (!unwinder_names[i]) {
            snprintf(config->ignored, sizeof config->ignored, "OFFHEAP_UNWINDER: not hybrid, fp or builtin");
            break;
        }
        if (!strcmp(text, unwinder_names[i])) {
            config->unwinder = (enum unwinder)i;
            break;
        }
    }
}

socklen_t config_abstract_address(const struct config *config, pid_t pid, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};   // an abstract name begins with a NUL
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "offheap/%.80s/%d", config->unit, (int)pid);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}
