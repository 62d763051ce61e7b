// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// One JSON value into a buffer, or through a buffer into a file.
#ifndef OFFHEAP_JSON_H
#define OFFHEAP_JSON_H

#include "descriptors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
bool json_finish(struct json *json);   // adds a newline and writes what is left; false if anything was lost

#endif
