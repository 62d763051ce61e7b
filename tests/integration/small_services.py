# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Services of a few lines of Python, each odd in one way, that tests put on a host and take away again."""

from __future__ import annotations

import base64
import contextlib
import shlex
from collections.abc import Iterator

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for

# Grows by a block that jemalloc samples, ten times a second. `begin` runs first and may be anything.
_PROGRAM = """
import ctypes, os, socket, struct, sys, time
{begin}
kept = []
while True:
    kept.append(bytearray(64 << 10))
    time.sleep(0.1)
"""


@contextlib.contextmanager
def installed(host: LabHost, name: str, begin: str = "", lines: str = "") -> Iterator[str]:
    """The name of a running unit. ``begin`` is what its program does first, ``lines`` go to its [Service] section."""
    unit, program = f"{name}.service", "/usr/local/bin/small-service.py"
    text = f"[Service]\nExecStart=/usr/bin/python3 {program}\n{lines}\n[Install]\nWantedBy=multi-user.target\n"
    for path, content in ((program, _PROGRAM.format(begin=begin)), (f"/etc/systemd/system/{unit}", text)):
        packed = base64.b64encode(content.encode()).decode()
        host.run(f"echo {packed} | base64 -d > {shlex.quote(path)}")
    try:
        host.run(f"systemctl daemon-reload; systemctl enable --now {shlex.quote(unit)}")
        wait_for(lambda: host.main_pid(unit), f"{unit} runs")
        yield unit
    finally:
        host.run(
            f"systemctl disable --now {shlex.quote(unit)}; rm -f {shlex.quote(program)}"
            f" {shlex.quote('/etc/systemd/system/' + unit)}; systemctl daemon-reload; systemctl reset-failed",
            check=False,
        )
