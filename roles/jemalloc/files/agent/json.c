// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Writes JSON. Paths and arguments are bytes: those that are not UTF-8 become \udcXX, as Python's surrogateescape
// spells them, so that a reader gets the bytes back.
#include "json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void flush(struct json *json) {
    for (size_t done = 0; done < json->length && !json->failed;) {
        ssize_t written = -1;
        if (owned_still(json->file))
            written = write(json->file->fd, json->buffer + done, json->length - done);
        if (written <= 0)   // not EINTR: this thread has all signals blocked
            json->failed = true;
        else
            done += (size_t)written;
    }
    json->length = 0;
}

static void put(struct json *json, const char *text, size_t length) {
    while (length && !json->failed) {
        if (json->length == json->capacity) {
            if (!json->file) {
                json->failed = true;
                return;
            }
            flush(json);
        }
        size_t room = json->capacity - json->length, part = length < room ? length : room;
        memcpy(json->buffer + json->length, text, part);
        json->length += part;
        text += part;
        length -= part;
    }
}

static void put_text(struct json *json, const char *text) {
    put(json, text, strlen(text));
}

// The length of the UTF-8 sequence at the start of `text`, 0 when there is none (RFC 3629: no surrogates, no
// overlong forms).
static size_t utf8(const unsigned char *text, size_t length) {
    unsigned char first = text[0];
    size_t size = first < 0x80                      ? 1
                  : first >= 0xc2 && first < 0xe0   ? 2
                  : (first & 0xf0) == 0xe0          ? 3
                  : first >= 0xf0 && first < 0xf5   ? 4
                                                    : 0;
    if (!size || size > length)
        return 0;
    for (size_t i = 1; i < size; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    if ((first == 0xe0 && text[1] < 0xa0) || (first == 0xed && text[1] >= 0xa0) || (first == 0xf0 && text[1] < 0x90) ||
        (first == 0xf4 && text[1] >= 0x90))
        return 0;
    return size;
}

static void put_quoted(struct json *json, const char *bytes, size_t length) {
    put(json, "\"", 1);
    for (size_t i = 0; i < length;) {
        unsigned char byte = (unsigned char)bytes[i];
        size_t size = utf8((const unsigned char *)bytes + i, length - i);
        char escape[8];
        if (!size || byte < 0x20 || byte == 0x7f) {
            snprintf(escape, sizeof escape, "\\u%04x", size ? (unsigned)byte : 0xdc00u + byte);
            put_text(json, escape);
            i++;
            continue;
        }
        if (byte == '"' || byte == '\\')
            put(json, "\\", 1);
        put(json, bytes + i, size);
        i += size;
    }
    put(json, "\"", 1);
}

static void put_key(struct json *json, const char *key) {
    if (json->comma)
        put(json, ", ", 2);
    json->comma = true;
    if (key) {
        put_quoted(json, key, strlen(key));
        put(json, ": ", 2);
    }
}

void json_start(struct json *json, char *buffer, size_t capacity, const struct owned *file) {
    *json = (struct json){.buffer = buffer, .capacity = capacity, .file = file};
}

void json_open(struct json *json, const char *key, char bracket) {
    put_key(json, key);
    put(json, &bracket, 1);
    json->comma = false;
}

void json_close(struct json *json, char bracket) {
    put(json, &bracket, 1);
    json->comma = true;
}

void json_bytes(struct json *json, const char *key, const char *bytes, size_t length) {
    put_key(json, key);
    put_quoted(json, bytes, length);
}

void json_string(struct json *json, const char *key, const char *text) {
    if (text)
        json_bytes(json, key, text, strlen(text));
    else
        json_null(json, key);
}

static void put_number(struct json *json, const char *key, const char *number) {
    put_key(json, key);
    put_text(json, number);
}

void json_signed(struct json *json, const char *key, int64_t value) {
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, value);
    put_number(json, key, number);
}

void json_unsigned(struct json *json, const char *key, uint64_t value) {
    char number[32];
    snprintf(number, sizeof number, "%" PRIu64, value);
    put_number(json, key, number);
}

void json_bool(struct json *json, const char *key, bool value) {
    put_number(json, key, value ? "true" : "false");
}

void json_null(struct json *json, const char *key) {
    put_number(json, key, "null");
}

void json_seconds(struct json *json, const char *key, int64_t milliseconds) {
    char number[48];   // by hand: printf's decimal point depends on the service's locale
    int64_t size = milliseconds < 0 ? -milliseconds : milliseconds;
    snprintf(number, sizeof number, "%s%" PRId64 ".%03d", milliseconds < 0 ? "-" : "", size / 1000, (int)(size % 1000));
    put_number(json, key, number);
}

bool json_finish(struct json *json) {
    put(json, "\n", 1);
    if (json->file)
        flush(json);
    return !json->failed;
}
