// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// loading LIBRARY: a thread opens the library, which as it begins (built with -DSLOW from this file) waits for the main
// thread, by a mutex, so that it is not held itself. The main thread waits for a line on stdin.
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <unistd.h>

extern pthread_mutex_t go_on;
extern sem_t inside;

#ifdef SLOW
__attribute__((constructor)) static void wait_inside(void) {
    sem_post(&inside);
    pthread_mutex_lock(&go_on);
    pthread_mutex_unlock(&go_on);
}
#else
pthread_mutex_t go_on = PTHREAD_MUTEX_INITIALIZER;
sem_t inside;

static void *load(void *path) {
    return dlopen(path, RTLD_NOW);
}

int main(int count, char **words) {
    pthread_t thread;
    void *library = NULL;
    char byte;
    pthread_mutex_lock(&go_on);
    sem_init(&inside, 0, 0);
    pthread_create(&thread, NULL, load, words[count - 1]);
    sem_wait(&inside);
    printf("loads\n");
    fflush(stdout);
    if (read(0, &byte, 1) != 1)
        return 1;
    pthread_mutex_unlock(&go_on);
    pthread_join(thread, &library);
    printf("loaded %d\n", library != NULL);
    fflush(stdout);
    return read(0, &byte, 1) != 1;
}
#endif
