// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
#define _GNU_SOURCE
#include "loader.h"

#include <link.h>
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void loader_lock(void) {
    pthread_mutex_lock(&lock);
}

void loader_unlock(void) {
    pthread_mutex_unlock(&lock);
}

void loader_list(loader_visit *visit, void *context) {
    loader_lock();
    dl_iterate_phdr(visit, context);
    loader_unlock();
}
