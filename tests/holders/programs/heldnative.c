// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// What Held.java calls.
#include <jni.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 3000

JNIEXPORT void JNICALL Java_Held_lostByNative(JNIEnv *env, jclass of) {
    (void)env, (void)of;
    for (int i = 0; i < COUNT; i++) {
        char *volatile made = malloc(600);
        memset(made, 1, 600);
    }
}
