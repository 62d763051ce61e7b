# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A Go program that forgets blocks of 1 KiB in main.leak, and Go's own tools to compare with."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SIZE = 1024
_SOURCE = """\
package main

import (
    "os"
    "runtime"
    "runtime/debug"
    "runtime/pprof"
    "strconv"
)

var kept [40000]*[1024]byte

//go:noinline
func leak(i int) { kept[i] = new([1024]byte) }

func main() {
    runtime.MemProfileRate, _ = strconv.Atoi(os.Args[2])
    count, _ := strconv.Atoi(os.Args[3])
    debug.SetGCPercent(-1) // else the collector's own objects are charged to who allocates meanwhile
    for i := 0; i < count; i++ {
        leak(i)
    }
    runtime.GC()
    file, _ := os.Create(os.Args[1])
    kind, _ := strconv.Atoi(os.Args[4])
    if os.Args[5] == "cpu" {
        pprof.StartCPUProfile(file)
        pprof.StopCPUProfile()
    } else {
        pprof.Lookup(os.Args[5]).WriteTo(file, kind)
    }
    file.Close()
}
"""
_CACHE = Path(__file__).resolve().parents[3] / ".cache" / "go-build"


def go(where: Path, *arguments: str, **variables: str) -> str:
    """Run the go command. Compiling its library takes minutes, so that is kept."""
    assert shutil.which("go"), "without Go nobody knows whether its profiles are read: install golang-go"
    environment = {**os.environ, "HOME": str(where), "GOCACHE": str(_CACHE), **variables}
    return subprocess.run(
        ["go", *arguments], cwd=where, env=environment, capture_output=True, text=True, check=True
    ).stdout


def built(directory: Path) -> Path:
    """The program."""
    (directory / "leak.go").write_text(_SOURCE)
    go(directory, "build", "-o", "leak", "leak.go")
    return directory / "leak"


def write_profile(program: Path, path: Path, rate: int, blocks: int, debug: int = 0, kind: str = "heap") -> None:
    """Have the program forget so many blocks, and write a profile of itself at this sampling rate: a protobuf, or
    text with ``debug`` 1. ``kind`` is Go's name for the profile, or cpu."""
    subprocess.run([program, path, str(rate), str(blocks), str(debug), kind], check=True)
