// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// The control socket: <directory>/<pid>.sock, 0600, for root and the service's own user. A process that has changed its
// user before it was forked may not write there: then it listens at a name that is no file. A line comes in, a line of
// JSON goes out. Commands run one at a time. A client that is silent, sends too long a line or does not read its
// answers is disconnected: the agent waits for nobody.
#define _GNU_SOURCE
#include "control.h"

#include "clock.h"
#include "json.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE 30000   // milliseconds until a silent client is disconnected
#define BACKLOG 64
#define CHECK 60000      // milliseconds between two looks at whether the socket is still there
#define NOBODY 65534     // kernel.overflowuid
#define REOPEN 1000      // milliseconds before a lost socket is reopened: the service may still be closing descriptors

static char answer_buffer[32768];

static bool bind_to(const char *path, int fd) {
    struct sockaddr_un address;
    struct owned directory;
    if (!owned_address(path, &address, &directory))
        return false;
    fchmod(fd, 0600);   // before bind: the socket never exists with more permissions than these
    bool bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    int error = errno;
    owned_close(&directory);
    errno = error;
    return bound;
}

static bool is_socket(const char *path, ino_t *inode) {
    struct stat status;
    if (lstat(path, &status) < 0 || !S_ISSOCK(status.st_mode))
        return false;
    *inode = status.st_ino;
    return true;
}

void control_prepare(struct control *control) {
    control->socket.fd = -1;
    for (int i = 0; i < CONTROL_CLIENTS; i++)
        control->clients[i].socket.fd = -1;
}

static bool open_in_directory(struct control *control) {
    char partial[sizeof control->path + 8];
    ino_t inode;
    snprintf(control->path, sizeof control->path, "%s/%d.sock", control->config->socket_directory, (int)control->pid);
    snprintf(partial, sizeof partial, "%s/.%d.sock", control->config->socket_directory, (int)control->pid);
    if (is_socket(partial, &inode))
        unlink(partial);   // left by an earlier process with our pid
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // It gets its name once it listens, so that whoever sees it can connect.
    if (!owned_take(&control->socket, fd) || !bind_to(partial, control->socket.fd) ||
        listen(control->socket.fd, BACKLOG) < 0 || rename(partial, control->path) < 0) {
        int error = errno;
        owned_close(&control->socket);
        errno = error;
        return false;
    }
    if (is_socket(control->path, &inode))
        control->path_inode = inode;
    return true;
}

// The peer check of each client stands in for the file's permissions.
static bool open_abstract(struct control *control) {
    struct sockaddr_un address;
    socklen_t size = config_abstract_address(control->config, control->pid, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (owned_take(&control->socket, fd) && bind(control->socket.fd, (struct sockaddr *)&address, size) == 0 &&
        listen(control->socket.fd, BACKLOG) == 0)
        return true;
    owned_close(&control->socket);
    return false;
}

void control_open(struct control *control) {
    control->next_check = clock_monotonic() + CHECK;
    control->path_inode = 0;
    control->abstract = false;
    if (!strcmp(control->config->socket_directory, "-"))
        return;
    if (!*control->config->socket_directory) {
        problem_note(control->problem, "no control socket: neither OFFHEAP_SOCKET_DIR nor OFFHEAP_UNIT is set");
        return;
    }
    if (open_in_directory(control))
        return;
    int error = errno;
    control->abstract = *control->config->unit && open_abstract(control);
    if (!control->abstract)
        problem_note(control->problem, "no control socket %s: %s", control->path, strerror(error));
}

void control_unlink(const struct control *control) {
    ino_t inode;
    if (control->path_inode && is_socket(control->path, &inode) && inode == control->path_inode)
        unlink(control->path);
}

void control_close(struct control *control) {
    control_unlink(control);
    owned_close(&control->socket);
    for (int i = 0; i < CONTROL_CLIENTS; i++)
        owned_close(&control->clients[i].socket);
    control->path_inode = 0;
}

void control_forget_in_child(struct control *control) {
    if (!descriptors_are_private()) {   // else none of them was inherited, and their numbers are the service's files
        owned_close(&control->socket);
        for (int i = 0; i < CONTROL_CLIENTS; i++)
            owned_close(&control->clients[i].socket);
    }
    control->path_inode = 0;
}

static void check(struct control *control) {
    int64_t now = clock_monotonic();
    ino_t inode;
    if (control->socket.fd >= 0 && !owned_still(&control->socket)) {
        control->socket.fd = -1;
        control->next_check = now + REOPEN;
    }
    if (now < control->next_check)
        return;
    control->next_check = now + CHECK;
    // A service that has given up its rights may not look there any more.
    errno = 0;
    bool ours = control->abstract || (is_socket(control->path, &inode) ? inode == control->path_inode : errno == EACCES);
    if (control->socket.fd >= 0 && ours)
        return;
    owned_close(&control->socket);
    control_unlink(control);
    control_open(control);
}

// Whether every user of the host has a number here. In a user namespace, those without one are all called nobody.
static bool users_differ(void) {
    char map[64];
    return owned_slurp("/proc/self/uid_map", map, sizeof map) > 0 && strstr(map, " 4294967295");
}

static bool is_allowed(int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return false;
    return peer.uid == 0 || (peer.uid == geteuid() && (peer.uid != NOBODY || users_differ()));
}

// Accepts one waiting client. False if none waits.
static bool welcome(struct control *control) {
    struct client *client = NULL;
    struct owned socket;
    if (!owned_still(&control->socket) ||
        !owned_take(&socket, accept4(control->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)))
        return false;
    if (!is_allowed(socket.fd)) {
        owned_close(&socket);
        return true;
    }
    for (int i = 0; i < CONTROL_CLIENTS; i++) {   // a free place, or that of the client silent for longest
        struct client *other = &control->clients[i];
        if (!client || (client->socket.fd >= 0 && (other->socket.fd < 0 || other->deadline < client->deadline)))
            client = other;
    }
    owned_close(&client->socket);
    client->socket = socket;
    client->length = 0;
    client->deadline = clock_monotonic() + PATIENCE;
    return true;
}

static bool answer(struct control *control, struct client *client, char *line) {
    struct json json;
    json_start(&json, answer_buffer, sizeof answer_buffer, NULL);
    json_open(&json, NULL, '{');
    json_signed(&json, "protocol", PROTOCOL);
    command_run(control->command, line, &json);
    json_close(&json, '}');
    return json_finish(&json) && owned_still(&client->socket) &&
           send(client->socket.fd, json.buffer, json.length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)json.length;
}

// Whether a whole line has come.
static bool has_line(const struct client *client) {
    return client->socket.fd >= 0 && memchr(client->line, '\n', client->length);
}

// Reads what the client sent. False if the client must go.
static bool receive(struct client *client) {
    if (!owned_still(&client->socket))
        return false;
    ssize_t count = recv(client->socket.fd, client->line + client->length, CONTROL_LINE - client->length, MSG_DONTWAIT);
    if (count <= 0)
        return count < 0 && (errno == EAGAIN || errno == EINTR);
    client->length += (size_t)count;
    return true;
}

// Runs one of the client's commands. False if the client must go.
static bool serve(struct control *control, struct client *client) {
    char line[CONTROL_LINE + 1];
    char *end = memchr(client->line, '\n', client->length);
    if (!end)
        return client->length < CONTROL_LINE;   // else the line is too long
    size_t size = (size_t)(end - client->line) + 1;
    memcpy(line, client->line, size - 1);
    line[size - 1] = '\0';
    client->length -= size;
    memmove(client->line, end + 1, client->length);
    bool sane = strlen(line) == size - 1 && answer(control, client, line);
    client->deadline = clock_monotonic() + PATIENCE;
    return sane;
}

// Serves or disconnects the client, whichever poll's events call for.
static void attend(struct control *control, struct client *client, short events) {
    bool gone = events & POLLNVAL;
    if (!gone && !has_line(client))
        gone = events & POLLIN ? !receive(client) : events != 0;
    if (gone || !serve(control, client))
        owned_close(&client->socket);
}

void control_wait(struct control *control, int64_t milliseconds) {
    struct pollfd files[CONTROL_CLIENTS + 1];
    struct client *polled[CONTROL_CLIENTS];
    nfds_t count = 0;
    check(control);
    for (int i = 0; i < CONTROL_CLIENTS; i++) {
        struct client *client = &control->clients[i];
        if (client->socket.fd >= 0 && (!owned_still(&client->socket) || clock_monotonic() >= client->deadline))
            owned_close(&client->socket);
        if (client->socket.fd < 0)
            continue;
        if (milliseconds > 1000)
            milliseconds = 1000;   // so that deadlines are kept
        if (has_line(client))
            milliseconds = 0;
        polled[count] = client;
        files[count++] = (struct pollfd){.fd = client->socket.fd, .events = POLLIN};
    }
    int64_t until_check = control->next_check - clock_monotonic();
    if (milliseconds > until_check)
        milliseconds = until_check > 0 ? until_check : 0;
    files[count] = (struct pollfd){.fd = control->socket.fd, .events = POLLIN};
    if (poll(files, count + (control->socket.fd >= 0), (int)milliseconds) < 0) {
        usleep(100000);   // no memory, or more files than the process may have
        return;
    }
    for (nfds_t i = 0; i < count; i++)
        if (files[i].revents || has_line(polled[i]))
            attend(control, polled[i], files[i].revents);
    if (control->socket.fd < 0)
        return;
    if (files[count].revents & POLLIN) {
        int taken = 0;
        while (taken < CONTROL_CLIENTS / 2 && welcome(control))   // those already here get their answers first
            taken++;
        if (!taken)
            usleep(10000);   // probably out of descriptors
    } else if (files[count].revents) {
        usleep(10000);   // no longer ours: the next check opens another
    }
}
