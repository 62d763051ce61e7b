# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Spools that are damaged, hostile, or odd: what lay whole in them is kept, what cannot be read is told."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault

CUT = "printf 'heap_v2/524288\\n t*: 1: 2' >{dump}; chown app {dump}"


def both(name: str, inject: str, collected: str = "", purged: str = "", everyday: bool = False) -> list[Fault]:
    """Under collect and under purge, which may be ``everyday``."""
    command = f"cd {{spool}}; {inject}"
    return [
        Fault(name, "spool", "collect", collected, inject=command),
        Fault(name, "spool", "purge", purged, inject=command, everyday=everyday),
    ]


ROWS = [
    *both("a crash has cut a dump off", CUT, purged="could never be collected", everyday=True),
    *both("an empty dump", ": > {dump}; chown app {dump}"),
    *both("a dump of garbage", "head -c 100000 /dev/urandom > {dump}; chown app {dump}"),
    *both("a dump without mappings", "printf 'heap_v2/524288\\n  t*: 0: 0 [0: 0]\\n' > {dump}; chown app {dump}"),
    *both("a sparse dump of 1 TiB", "truncate -s 1T {dump}; chown app {dump}"),
    *both("a dump that is a link", "ln -s /etc/shadow {dump}"),
    *both("a dump that is a pipe", "mkfifo {dump}"),
    *both("a dump that is a directory", "mkdir {dump}"),
    *both("a dump that is a socket", "python3 -c 'import socket; socket.socket(1).bind(\"{dump}\")'"),
    *both("a dump of another user", "cp {dumped} {dump}; chown 12345 {dump}"),
    *both("a hard link to another file", "ln /etc/hostname {dump} || true"),
    *both("a dump that nobody may read", "cp {dumped} {dump}; chmod 0 {dump}"),
    *both("a name that is a path", "cp {dumped} 'jeprof.1.0.i0.heap\\..\\..'"),
    *both("a name with a line break", "cp {dumped} \"$(printf 'jeprof.1.0.\\ni0.heap')\""),
    *both("a name that is markup", "cp {dumped} 'jeprof.1.0.<b>.heap'"),
    *both("a name of 250 characters", "cp {dumped} $(head -c 240 /dev/zero | tr '\\0' x).heap"),
    *both("a name that is no UTF-8", "cp {dumped} \"$(printf 'jeprof.1.0.\\377.heap')\""),
    *both("a sidecar of garbage", "head -c 5000 /dev/urandom > {dump}.json"),
    *both("a sidecar of 100 MiB", "truncate -s 100M {dump}.json"),
    *both("statistics of garbage", "head -c 5000 /dev/urandom > stats.jsonl"),
    *both("three hundred small files", "for i in $(seq 300); do : > x$i; done"),
    *both("directories in directories", "mkdir -p a/b/c/d/e/f/g; touch a/b/c/x"),
    *both("a time in the future", "touch -d '2040-01-01' *.heap"),
    *both("a time before 1970", "touch -d '1960-01-01' *.heap"),
]
