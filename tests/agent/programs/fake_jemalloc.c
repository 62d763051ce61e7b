// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The part of mallctl(3) that the agent uses, without an allocator behind it: so that the agent's own code can run
// under the sanitizers (which bring an allocator of their own) and on other machines under qemu. FAKE_PROF=0 is a
// jemalloc built without profiling, FAKE_OLD=1 one before 5.3.0, FAKE_PREFIX its prof_prefix.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void hook_type(void **, unsigned *, unsigned);

static atomic_bool active;
static hook_type *_Atomic hook;
static _Thread_local bool thread_inactive;

__attribute__((noinline)) void fake_sample(void **frames, unsigned *length, unsigned limit) {
    hook_type *installed = atomic_load(&hook);
    *length = 0;
    if (installed && atomic_load(&active) && !thread_inactive)
        installed(frames, length, limit);
}

static int dump(const char *name) {
    char line[200];
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        return EFAULT;
    int length = snprintf(line, sizeof line, "heap_v2/524288\n  t*: 3: 4096 [0: 0]\n\nMAPPED_LIBRARIES:\n");
    bool whole = write(fd, line, (size_t)length) == length;
    close(fd);
    return whole ? 0 : EFAULT;
}

static int answer(void *old, size_t *old_size, const void *value, size_t size) {
    if (!old || !old_size || *old_size != size)
        return EINVAL;
    memcpy(old, value, size);
    return 0;
}

__attribute__((visibility("default"))) int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) {
    const char *wanted = getenv("FAKE_PROF"), *prefix = getenv("FAKE_PREFIX"), *version = "5.3.0-fake";
    bool prof = !wanted || strcmp(wanted, "0"), on = atomic_load(&active);
    size_t number = 19;
    void *free_hook = NULL;
    (void)new_size;
    if (!strcmp(name, "config.prof") || !strcmp(name, "opt.prof"))
        return answer(old, old_size, &prof, sizeof prof);
    if (!strcmp(name, "prof.active")) {
        if (new)
            atomic_store(&active, *(bool *)new);
        return old ? answer(old, old_size, &on, sizeof on) : 0;
    }
    if (!strcmp(name, "thread.prof.active")) {
        thread_inactive = new && !*(bool *)new;
        return 0;
    }
    if (!strcmp(name, "experimental.hooks.prof_backtrace") && new && !getenv("FAKE_OLD")) {
        atomic_store(&hook, *(hook_type **)new);
        return 0;
    }
    if (!strcmp(name, "experimental.hooks.prof_sample_free"))
        return getenv("FAKE_OLD") ? ENOENT : answer(old, old_size, &free_hook, sizeof free_hook);
    if (!strcmp(name, "version"))
        return answer(old, old_size, &version, sizeof version);
    if (!strcmp(name, "opt.prof_prefix"))
        return answer(old, old_size, &prefix, sizeof prefix);
    if (!strcmp(name, "prof.lg_sample") || !strncmp(name, "stats.", 6))
        return answer(old, old_size, &number, sizeof number);
    if (!strcmp(name, "prof.dump"))
        return new ? dump(*(const char **)new) : EINVAL;
    return !strcmp(name, "epoch") || !strcmp(name, "prof.reset") ? 0 : ENOENT;
}
