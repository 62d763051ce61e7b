// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What a dump does not say itself: which process, which jemalloc with which options, how much memory. What cannot
// be read (a sandbox hides much of /proc) is null or absent, never a guess. Formats: proc(5), jemalloc(3).
#include "offheap.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define IMAGES 4096

static char scratch[64 * 1024];

static int64_t clock_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t facts_now(void) {
    return clock_ms(CLOCK_REALTIME);
}

int64_t facts_monotonic(void) {
    return clock_ms(CLOCK_MONOTONIC);
}

// A small file of /proc into `scratch`, with a NUL behind it. The length, or -1.
static ssize_t slurp(const char *path) {
    struct owned file;
    size_t length = 0;
    ssize_t count = -1;
    if (!owned_take(&file, open(path, O_RDONLY | O_CLOEXEC)))
        return -1;
    while (length < sizeof scratch - 1 && owned_still(&file) &&
           (count = read(file.fd, scratch + length, sizeof scratch - 1 - length)) > 0)
        length += (size_t)count;
    owned_close(&file);
    scratch[length] = '\0';
    return count < 0 ? -1 : (ssize_t)length;
}

static void start_time(struct json *json) {
    int64_t ticks = -1;
    if (slurp("/proc/self/stat") > 0) {
        char *at = strrchr(scratch, ')');   // the name may hold anything; the start time is field 22, this is 2
        for (int field = 2; at && field < 22; field++)
            at = strchr(at + 1, ' ');
        if (at)
            ticks = strtoll(at + 1, NULL, 10);
    }
    if (ticks < 0) {
        json_null(json, "start_ticks");
        json_null(json, "start_time");
        return;
    }
    int64_t age = clock_ms(CLOCK_BOOTTIME) - ticks * 1000 / sysconf(_SC_CLK_TCK);
    json_signed(json, "start_ticks", ticks);
    json_seconds(json, "start_time", facts_now() - age);
}

void facts_process(struct json *json, bool arguments) {
    char path[PATH_MAX];
    json_signed(json, "pid", getpid());
    start_time(json);
    if (slurp("/proc/sys/kernel/random/boot_id") > 0)
        json_bytes(json, "boot_id", scratch, strcspn(scratch, "\n"));
    else
        json_null(json, "boot_id");
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    if (length > 0)
        json_bytes(json, "exe", path, (size_t)length);
    else
        json_null(json, "exe");
    if (!arguments)
        return;
    length = slurp("/proc/self/cmdline");
    if (length < 0) {
        json_null(json, "cmdline");
        return;
    }
    json_open(json, "cmdline", '[');
    for (ssize_t i = 0; i < length; i += (ssize_t)strlen(scratch + i) + 1)
        json_string(json, NULL, scratch + i);
    json_close(json, ']');
}

void facts_jemalloc(struct json *json, const struct config *config) {
    static const char *const switches[] = {"prof_active", "prof_accum", "prof_final", "prof_gdump", "prof_leak",
                                           "prof_unbias", "prof_thread_active_init", "background_thread"};
    static const char *const numbers[] = {"lg_prof_sample", "lg_prof_interval", "dirty_decay_ms", "muzzy_decay_ms"};
    char name[64];
    bool value;
    size_t size;
    json_open(json, "jemalloc", '{');
    json_string(json, "version", je_get_string("version"));
    json_string(json, "malloc_conf", *config->malloc_conf ? config->malloc_conf : NULL);
    json_open(json, "options", '{');
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        snprintf(name, sizeof name, "opt.%s", switches[i]);
        if (je_get_bool(name, &value))
            json_bool(json, switches[i], value);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(name, sizeof name, "opt.%s", numbers[i]);
        if (je_get_size(name, &size))   // size_t and ssize_t alike; -1 is "off"
            json_signed(json, numbers[i], (ssize_t)size);
    }
    json_string(json, "prof_prefix", je_get_string("opt.prof_prefix"));
    json_close(json, '}');
    json_close(json, '}');
}

void facts_memory(struct json *json) {
    static const char *const fields[][2] = {{"VmRSS", "rss"},          {"RssAnon", "rss_anon"}, {"RssFile", "rss_file"},
                                            {"RssShmem", "rss_shmem"}, {"VmHWM", "rss_peak"},   {"VmSwap", "swap"},
                                            {"VmSize", "virtual"}};
    static const char *const statistics[] = {"allocated", "active", "metadata", "resident", "mapped", "retained"};
    char name[64];
    size_t size;
    json_open(json, "memory", '{');
    if (slurp("/proc/self/status") > 0) {
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            snprintf(name, sizeof name, "\n%s:", fields[i][0]);
            const char *line = strstr(scratch, name);
            if (line)
                json_signed(json, fields[i][1], strtoll(line + strlen(name), NULL, 10) * 1024);
        }
        const char *line = strstr(scratch, "\nThreads:");
        if (line)
            json_signed(json, "threads", strtoll(line + strlen("\nThreads:"), NULL, 10));
    }
    je_refresh_statistics();
    for (size_t i = 0; i < sizeof statistics / sizeof *statistics; i++) {
        snprintf(name, sizeof name, "stats.%s", statistics[i]);
        if (je_get_size(name, &size))
            json_unsigned(json, statistics[i], size);
    }
    json_close(json, '}');
}

// Reads our own memory the way that fails instead of faulting: another thread may unload the image meanwhile.
static bool peek(const struct owned *memory, uintptr_t address, void *to, size_t size) {
    return owned_still(memory) && pread(memory->fd, to, size, (off_t)address) == (ssize_t)size;
}

// The GNU build-id of the image whose file offset 0 is mapped at `base`, in hex; false when it has none.
static bool build_id(const struct owned *memory, uintptr_t base, char *hex, size_t size) {
    ElfW(Ehdr) header;
    ElfW(Phdr) program[64];
    char notes[4096];
    if (!peek(memory, base, &header, sizeof header) || memcmp(header.e_ident, ELFMAG, SELFMAG) ||
        header.e_phentsize != sizeof *program || !header.e_phnum || header.e_phnum > 64 || header.e_phoff > 4096 ||
        !peek(memory, base + header.e_phoff, program, header.e_phnum * sizeof *program))
        return false;
    uintptr_t bias = base;
    for (int i = 0; i < header.e_phnum; i++)
        if (program[i].p_type == PT_LOAD && program[i].p_offset == 0)
            bias = base - program[i].p_vaddr;
    for (int i = 0; i < header.e_phnum; i++) {
        size_t length = program[i].p_filesz;
        if (program[i].p_type != PT_NOTE || length > sizeof notes || !peek(memory, bias + program[i].p_vaddr, notes, length))
            continue;
        size_t align = program[i].p_align == 8 ? 8 : 4;
        for (size_t at = 0; length - at >= sizeof(ElfW(Nhdr)) && at < length;) {
            ElfW(Nhdr) note;
            memcpy(&note, notes + at, sizeof note);
            size_t name = at + sizeof note;
            if (note.n_namesz > length || note.n_descsz > length)
                break;
            size_t description = (name + note.n_namesz + align - 1) & -align;
            if (description + note.n_descsz > length)
                break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !memcmp(notes + name, "GNU", 4) &&
                note.n_descsz && note.n_descsz * 2 < size) {
                for (size_t k = 0; k < note.n_descsz; k++)
                    snprintf(hex + 2 * k, 3, "%02x", (unsigned char)notes[description + k]);
                return true;
            }
            at = (description + note.n_descsz + align - 1) & -align;
        }
    }
    return false;
}

void facts_images(struct json *json) {
    static struct maps_reader reader;
    static char first[PATH_MAX];   // of the file whose mappings are being passed
    struct mapping mapping;
    struct owned memory;
    uintptr_t base = 0;
    uint64_t inode = 0;
    int images = 0;
    char hex[129];
    if (!maps_open(&reader)) {
        json_null(json, "images");
        return;
    }
    owned_take(&memory, open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
    json_open(json, "images", '[');
    while (maps_next(&reader, &mapping) && images < IMAGES) {
        if (*mapping.path != '/' || !mapping.inode)
            continue;
        if (mapping.offset == 0 && (inode != mapping.inode || strcmp(first, mapping.path))) {
            snprintf(first, sizeof first, "%s", mapping.path);
            inode = mapping.inode;
            base = mapping.start;
        }
        if (!mapping.executable || !base || inode != mapping.inode || strcmp(first, mapping.path))
            continue;
        bool known = build_id(&memory, base, hex, sizeof hex);
        base = 0;   // one line for each image
        json_open(json, NULL, '{');
        json_string(json, "path", mapping.path);
        json_string(json, "build_id", known ? hex : NULL);
        json_close(json, '}');
        images++;
    }
    json_close(json, ']');
    owned_close(&memory);
    maps_close(&reader);
}
