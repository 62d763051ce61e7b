// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

// Forgets C strings: main.main calls main.serve, that calls main.keepName, for as long as it is let. A goroutine of its
// own does the same through main.handle.
package main

// #include <stdlib.h>
import "C"

import (
	"strings"
	"time"
)

var name = strings.Repeat("x", 20000)

//go:noinline
func keepName() *C.char { return C.CString(name) }

//go:noinline
func serve() { keepName() }

//go:noinline
func handle() {
	for {
		keepName()
		time.Sleep(time.Millisecond)
	}
}

func main() {
	go handle()
	for {
		serve()
		time.Sleep(time.Millisecond)
	}
}
