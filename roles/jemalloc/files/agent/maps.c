// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Reads /proc/self/maps line by line without malloc. Format: proc(5).
#include "maps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char elsewhere[PATH_MAX];

void maps_use(const char *path) {
    snprintf(elsewhere, sizeof elsewhere, "%s", path);
}

int maps_descriptor(void) {
    int fd = open(owned_process("maps"), O_RDONLY | O_CLOEXEC);
    return fd < 0 && *elsewhere ? open(elsewhere, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : fd;
}

bool maps_open(struct maps_reader *reader) {
    reader->start = reader->length = 0;
    reader->skipping = false;
    return owned_take(&reader->file, maps_descriptor());
}

void maps_close(struct maps_reader *reader) {
    owned_close(&reader->file);
}

// The next line, its newline replaced by NUL; a line longer than the buffer is skipped.
static char *next_line(struct maps_reader *reader) {
    for (;;) {
        char *line = reader->buffer + reader->start;
        char *end = memchr(line, '\n', reader->length);
        if (end) {
            size_t size = (size_t)(end - line) + 1;
            reader->start += size;
            reader->length -= size;
            *end = '\0';
            if (!reader->skipping)
                return line;
            reader->skipping = false;
            continue;
        }
        if (reader->length == sizeof reader->buffer) {
            reader->skipping = true;
            reader->length = 0;
        }
        memmove(reader->buffer, line, reader->length);
        reader->start = 0;
        ssize_t count = -1;
        if (owned_still(&reader->file))
            count = read(reader->file.fd, reader->buffer + reader->length, sizeof reader->buffer - reader->length);
        if (count <= 0)
            return NULL;
        reader->length += (size_t)count;
    }
}

static void unescape(char *path) {
    static const char deleted[] = " (deleted)";
    size_t length = strlen(path);
    if (length > sizeof deleted && !strcmp(path + length - (sizeof deleted - 1), deleted))
        path[length - (sizeof deleted - 1)] = '\0';
    char *to = path;
    for (const char *from = path; *from; to++) {
        bool newline = !strncmp(from, "\\012", 4);   // the only thing that the kernel escapes here
        *to = newline ? '\n' : *from;
        from += newline ? 4 : 1;
    }
    *to = '\0';
}

bool maps_next(struct maps_reader *reader, struct mapping *mapping) {
    char *line;
    while ((line = next_line(reader))) {
        char *at;
        mapping->start = strtoull(line, &at, 16);
        if (*at != '-')
            continue;
        mapping->end = strtoull(at + 1, &at, 16);
        if (strnlen(at, 6) < 6)
            continue;
        mapping->executable = at[3] == 'x';
        mapping->writable = at[1] == 'r' && at[2] == 'w';
        mapping->none = !strncmp(at + 1, "---", 3);
        mapping->offset = strtoull(at + 6, &at, 16);
        at += *at == ' ';
        at += strcspn(at, " ");   // device
        mapping->inode = strtoull(at, &at, 10);
        at += strspn(at, " ");
        unescape(at);
        mapping->path = at;
        mapping->anonymous = !mapping->inode && (!*at || !strncmp(at, "[anon", 5));
        return true;
    }
    return false;
}
