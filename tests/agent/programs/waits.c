// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// Threads that wait, each in another call, for 300 ms at a time. A line for each wait that ended early, late, or by a
// signal that nobody sent. With an argument: only that one, in the only thread; hardly waits, never waits,
// waits until a signal comes, and waits until somebody reads.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const double LASTS = 0.3;
static double longest = 1e9;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void check(const char *name, int good, double began) {
    double took = now() - began;
    if (good && took > LASTS - 0.01 && took < longest)
        return;
    printf("%s: %s, errno %d, after %.3f\n", name, good ? "good" : "bad", errno, took);
    fflush(stdout);
}

static void *in_epoll(void *unused) {
    int fd = epoll_create1(0);
    struct epoll_event event;
    for (double t = now();; t = now())
        check("epoll", epoll_wait(fd, &event, 1, 300) == 0, t);
    return unused;
}

static void *in_poll(void *unused) {
    for (double t = now();; t = now())
        check("poll", poll(NULL, 0, 300) == 0, t);
    return unused;
}

static void *in_select(void *unused) {
    for (double t = now();; t = now()) {
        struct timeval time = {0, 300000};
        check("select", select(0, NULL, NULL, NULL, &time) == 0, t);
    }
    return unused;
}

static void *in_sleep(void *unused) {
    for (double t = now();; t = now()) {
        struct timespec time = {0, 300000000};
        check("sleep", nanosleep(&time, NULL) == 0, t);
    }
    return unused;
}

static void *in_recv(void *unused) {
    int pair[2];
    char byte;
    struct timeval time = {0, 300000};
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    for (double t = now();; t = now())
        check("recv", recv(pair[0], &byte, 1, 0) < 0 && errno == EAGAIN, t);
    return unused;
}

static void *in_condition(void *unused) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&mutex);
    for (double t = now();; t = now()) {
        struct timespec time;
        clock_gettime(CLOCK_REALTIME, &time);
        time.tv_nsec += 300000000;
        time.tv_sec += time.tv_nsec / 1000000000;
        time.tv_nsec %= 1000000000;
        check("condition", pthread_cond_timedwait(&condition, &mutex, &time) == ETIMEDOUT, t);
    }
    return unused;
}

static void *never_for_long(void *unused) {
    for (volatile unsigned i = 1;; i++)
        if (i % 100000 == 0 && poll(NULL, 0, 0) != 0)
            check("short", 0, now());
    return unused;
}

static void *never(void *unused) {
    for (volatile unsigned i = 1;; i++)
        ;
    return unused;
}

static volatile sig_atomic_t signals;

static void count_signal(int number) {
    (void)number;
    signals++;
}

static void woken(int result) {
    if (result < 0 && errno == EINTR)
        printf("woken by %d\n", (int)signals);
    fflush(stdout);
}

static void *in_pause(void *unused) {
    for (;;)
        woken(pause());
    return unused;
}

static void *in_endless_epoll(void *unused) {
    struct epoll_event event;
    int fd = epoll_create1(0);
    for (;;)
        woken(epoll_wait(fd, &event, 1, -1));
    return unused;
}

static void *in_send(void *unused) {
    int pair[2];
    struct timeval time = {0, 300000};
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    while (send(pair[0], "x", 1, MSG_DONTWAIT) == 1)
        ;
    for (double t = now();; t = now())
        check("send", send(pair[0], "x", 1, 0) < 0 && errno == EAGAIN, t);
    return unused;
}

int main(int count, char **words) {
    void *(*const all[])(void *) = {in_epoll, in_poll,      in_select,      in_sleep,
                                    in_recv,  in_condition, never_for_long, never,
                                    in_pause, in_endless_epoll, in_send};
    signal(SIGUSR1, count_signal);
    printf("waits\n");
    fflush(stdout);
    if (count > 2)
        longest = atof(words[2]);
    if (count > 1)
        all[atoi(words[1])](NULL);
    for (size_t i = 0; i < sizeof all / sizeof *all - 5; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, all[i], NULL);
    }
    for (;;)
        pause();
}
