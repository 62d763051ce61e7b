// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What a held thread can disturb, all at once, until a line comes on stdin: threads that come and go, processes that
// are forked, a library that is opened and closed, the allocator under contention, a thousand queued signals a second.
// Then it counts what was sent, what arrived, and what went wrong. With the argument "busy" no thread waits for long.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile bool done;
static bool busy;
static atomic_long sent, arrived, threads, forks, opened, wrong;

static void count(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    wrong += info->si_value.sival_int != 7;   // each arrives with what it carries
    arrived++;
}

static void *brief(void *unused) {
    char *block = malloc(5000);
    memset(block, 1, 5000);
    free(block);
    return unused;
}

static void *start_threads(void *unused) {
    while (!done) {
        pthread_t thread;
        if (!pthread_create(&thread, NULL, brief, NULL)) {
            pthread_join(thread, NULL);
            threads++;
        }
    }
    return unused;
}

static void *fork_children(void *unused) {
    while (!done) {
        pid_t child = fork();
        if (!child) {
            free(malloc(100));
            _exit(7);
        }
        int status;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        wrong += !WIFEXITED(status) || WEXITSTATUS(status) != 7;
        forks++;
        usleep(busy ? 100 : 10000);
    }
    return unused;
}

static void *open_libraries(void *unused) {
    while (!done) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        void *other = dlopen("libz.so.1", RTLD_NOW);
        if (other)
            dlclose(other);
        if (library)
            dlclose(library);
        wrong += !library;
        opened++;
        usleep(busy ? 10 : 3000);
    }
    return unused;
}

static void *send_signals(void *unused) {
    while (!done) {
        union sigval value = {.sival_int = 7};
        if (!sigqueue(getpid(), SIGRTMIN + 3, value))
            sent++;
        usleep(1000);
    }
    return unused;
}

static void *allocate(void *unused) {
    void *kept[512] = {NULL};
    unsigned seed = 1;
    while (!done) {
        seed = seed * 1103515245 + 12345;
        void **one = &kept[seed >> 16 & 511];
        *one = realloc(*one, 16 + (seed >> 6 & 4095));
        if (seed & 64) {
            free(*one);
            *one = NULL;
        }
    }
    for (size_t i = 0; i < 512; i++)
        free(kept[i]);
    return unused;
}

static void *wait_for_events(void *unused) {
    struct epoll_event event;
    int fd = epoll_create1(0);
    while (!done)
        epoll_wait(fd, &event, 1, 100);
    close(fd);
    return unused;
}

int main(int words, char **word) {
    void *(*const all[])(void *) = {start_threads, fork_children, open_libraries, send_signals, allocate, allocate,
                                    wait_for_events};
    busy = words > 1 && !strcmp(word[1], "busy");
    size_t number = sizeof all / sizeof *all - (busy ? 1 : 0);
    pthread_t thread[sizeof all / sizeof *all];
    struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN + 3, &action, NULL);
    printf("runs\n");
    fflush(stdout);
    for (size_t i = 0; i < number; i++)
        pthread_create(&thread[i], NULL, all[i], NULL);
    for (struct pollfd input = {.fd = 0, .events = POLLIN}; poll(&input, 1, busy ? 0 : 50) <= 0;)
        ;
    done = true;
    for (size_t i = 0; i < number; i++)
        pthread_join(thread[i], NULL);
    usleep(300000);
    printf("sent %ld arrived %ld wrong %ld threads %ld forks %ld opened %ld\n", sent, arrived, wrong, threads, forks,
           opened);
    return sent == arrived && !wrong ? 0 : 1;
}
