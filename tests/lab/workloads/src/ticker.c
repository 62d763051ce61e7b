// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// A daemon that allocates and frees about 3 MiB a second and leaks nothing. It tells its service manager that it is
// ready and alive (sd_notify's protocol, without libsystemd). If it has a state directory, it keeps its count there.

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, TICKS_PER_SECOND = 100 };

static volatile sig_atomic_t stopping;

static void on_term(int number)
{
    (void)number;
    stopping = 1;
}

static void notify(const char *message)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL || strlen(path) == 0 || strlen(path) >= sizeof address.sun_path)
        return;
    memcpy(address.sun_path, path, strlen(path));
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (sendto(fd, message, strlen(message), MSG_NOSIGNAL, (struct sockaddr *)&address, length) < 0)
        perror("notify");
    close(fd);
}

__attribute__((noinline)) static char *cache_get(size_t size)
{
    char *page = malloc(size);
    if (page == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    memset(page, 0x5a, size);
    return page;
}

__attribute__((noinline)) static void serve_tick(char **slots, unsigned tick)
{
    char **slot = &slots[tick % SLOTS];
    free(*slot);
    *slot = cache_get(4096 + (size_t)(tick * 7919u % 57344u));
}

static void write_state(unsigned tick)
{
    const char *directory = getenv("STATE_DIRECTORY");
    char path[4096];
    if (directory == NULL || snprintf(path, sizeof path, "%s/ticks", directory) >= (int)sizeof path)
        return;
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        return;
    }
    fprintf(file, "%u\n", tick);
    fclose(file);
}

int main(void)
{
    static char *slots[SLOTS];
    const struct sigaction action = {.sa_handler = on_term};
    const struct timespec pause = {.tv_nsec = 1000000000L / TICKS_PER_SECOND};
    sigaction(SIGTERM, &action, NULL);
    notify("READY=1\nSTATUS=ticking");
    for (unsigned tick = 0; !stopping; tick++) {
        serve_tick(slots, tick);
        if (tick % TICKS_PER_SECOND == 0) {
            notify("WATCHDOG=1");
            write_state(tick);
        }
        if (nanosleep(&pause, NULL) != 0 && errno != EINTR) {
            perror("nanosleep");
            return 1;
        }
    }
    notify("STOPPING=1");
    for (unsigned slot = 0; slot < SLOTS; slot++)
        free(slots[slot]);
    return 0;
}
