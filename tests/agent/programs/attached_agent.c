// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// An agent as one sees it from outside, for a trace: it is opened in a process, leads a pointer of the program
// ("hook") to itself, listens at its control socket, writes dumps that say how many settings it got, and detaches. With
// the setting KEEP=1 it only says that it has; with FAIL=1 it does not begin; with DEAR=1 it ends itself after the
// first dump, and leaves another.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char text[4096];
static int listening, number;
static void **hook;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static const char *setting(const char *name) {
    size_t length = strlen(name);
    for (const char *line = text; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL)
        if (!strncmp(line, name, length) && line[length] == '=') {
            static char value[4096];
            snprintf(value, sizeof value, "%s", line + length + 1);
            value[strcspn(value, "\n")] = '\0';
            return value;
        }
    return "";
}

static void hooked(void) {
}

static void write_dump(FILE *client) {
    char path[4200];
    snprintf(path, sizeof path, "%s.12345678-%d.%d.%d.m%d.heap", setting("OFFHEAP_PREFIX"), 1000, (int)getpid(),
             number, number);
    number++;
    FILE *file = fopen(path, "w");
    if (!file) {
        fprintf(client, "{\"protocol\": 1, \"ok\": false, \"error\": \"no %s\"}\n", path);
        return;
    }
    fprintf(file, "heap_v2/%d\n  t*: %d: %d [0: 0]\n@ 0x1\n  t*: %d: %d [0: 0]\n", 1 << atoi(setting("OFFHEAP_LG_SAMPLE")),
            number, number * 100, number, number * 100);
    long size = ftell(file);
    fclose(file);
    fprintf(client, "{\"protocol\": 1, \"ok\": true, \"path\": \"%s\", \"size\": %ld, \"time\": 1.5}\n", path, size);
}

static void answer(FILE *client, const char *command) {
    if (!strncmp(command, "dump", 4)) {
        write_dump(client);
        if (*setting("DEAR")) {
            FILE *nobody = fopen("/dev/null", "w");
            write_dump(nobody);
            fclose(nobody);
            *hook = NULL;
            unlink(address.sun_path);
        }
        return;
    }
    if (!strncmp(command, "detach", 6) && !*setting("KEEP"))
        *hook = NULL;
    fprintf(client, "{\"protocol\": 1, \"ok\": true}\n");
}

static void *serve(void *unused) {
    for (;;) {
        char line[200];
        int fd = accept(listening, NULL, NULL);
        FILE *client = fdopen(fd, "r+");
        if (!client)
            return unused;
        while (fgets(line, sizeof line, client)) {
            fseek(client, 0, SEEK_CUR);
            answer(client, line + strlen("offheap/1 "));
            fflush(client);
        }
        fclose(client);
    }
}

__attribute__((visibility("default"))) int offheap_attach(const char *settings) {
    pthread_t thread;
    snprintf(text, sizeof text, "%s", settings);
    if (*setting("FAIL"))
        return 3;
    hook = dlsym(RTLD_DEFAULT, "hook");
    if (!hook)
        return 4;
    *hook = (void *)hooked;
    if (!*setting("OFFHEAP_SOCKET_DIR"))
        return 5;
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%d.sock", setting("OFFHEAP_SOCKET_DIR"), (int)getpid());
    unlink(address.sun_path);
    listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) || listen(listening, 8))
        return 6;
    return pthread_create(&thread, NULL, serve, NULL);
}
