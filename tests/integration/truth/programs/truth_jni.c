// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
// The native half of Truth.java: forgets what it takes. It uses nothing of jni.h, which is not everywhere.
#include <stdlib.h>

void Java_Truth_keepNative(void *environment, void *type, int size);

void Java_Truth_keepNative(void *environment, void *type, int size)
{
    void *volatile *copy = malloc((size_t)size);

    (void)environment;
    (void)type;
    if (!copy)
        abort();
    *copy = (void *)copy;
}
