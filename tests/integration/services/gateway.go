// SPDX-License-Identifier: GPL-3.0-or-later
// SPDX-FileCopyrightText: Offheap contributors

// A service that forgets a session of 64 KiB twenty times a second, and offers its profile as Go services do.
package main

import (
	"fmt"
	"net/http"
	_ "net/http/pprof"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const size = 64 << 10

var (
	forgotten [1 << 20][]byte
	count     int64
	_         = everyAllocation()
)

func everyAllocation() bool {
	runtime.MemProfileRate = 1
	return true
}

//go:noinline
func openSession(number int64) { forgotten[number] = make([]byte, size) }

func main() {
	debug.SetGCPercent(-1) // else the collector's own objects are charged to who allocates meanwhile; ?gc=1 collects
	http.HandleFunc("/forgotten", func(to http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(to, atomic.LoadInt64(&count)*size)
	})
	go http.ListenAndServe("127.0.0.1:6060", nil)
	for {
		openSession(count)
		atomic.AddInt64(&count, 1)
		time.Sleep(50 * time.Millisecond)
	}
}
