// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors
//
// held CASE SECONDS, in Go with cgo: after so long, C's blocks are lost or held by Go's memory, beside a table of what is kept.
package main

/*
#include <stdlib.h>
#include <string.h>

char *table[3000];   // not static: what is never read would not be stored

static void remember(void) {
    for (int i = 0; i < 3000; i++)
        table[i] = memset(malloc(400), 1, 400);
}

static void *block(void) {
    return memset(malloc(300), 1, 300);
}
*/
import "C"

import (
	"os"
	"strconv"
	"time"
	"unsafe"
)

const count = 3000

var cache = map[int]unsafe.Pointer{}

//go:noinline
func kept_by_a_map() {
	for number := 0; number < count; number++ {
		cache[number] = C.block()
	}
}

//go:noinline
func lost_by_return() {
	for number := 0; number < count; number++ {
		if C.block() == nil {
			return
		}
	}
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[2])
	time.Sleep(time.Duration(seconds) * time.Second)
	C.remember()
	if os.Args[1] == "kept_by_a_map" {
		kept_by_a_map()
	} else {
		lost_by_return()
	}
	for {
		time.Sleep(time.Second)
	}
}
