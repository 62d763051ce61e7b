# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a lab has left on this machine: mounts, network namespaces, links, cgroups, processes."""

from __future__ import annotations

import os
from pathlib import Path

from . import cgroups, network
from .settings import Settings


def find(settings: Settings) -> list[str]:
    """One line per leftover; empty if no lab of this name is up and none left anything behind."""
    found = [f"mount {point}" for point in _mounts(settings)]
    found += [f"network namespace {name}" for name in network.namespaces(settings)]
    found += [f"network link {name}" for name in network.links(settings)]
    found += [f"cgroup {path}" for path in cgroups.existing(settings)]
    pids = sorted({*cgroups.all_processes(settings), *stray_processes(settings)})
    found += [f"process {pid}: {_command_line(pid)[:100]}" for pid in pids]
    if settings.run.exists():
        found.append(f"directory {settings.run}")
    return found


def stray_processes(settings: Settings) -> list[int]:
    """Processes of the lab, recognized by their command line, in whatever cgroup they are."""
    mount = f"{settings.run}/mnt/root"
    pids: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        line = _command_line(pid)
        booting = "-m nspawnlab.boot" in line and f"OFFHEAP_LAB_NAME={settings.name}\0" in _environment(pid)
        if pid != os.getpid() and (mount in line or booting):
            pids.append(pid)
    return sorted(pids)


def _mounts(settings: Settings) -> list[str]:
    """Mount points below the run directory that this command's namespace sees."""
    points = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{settings.run}/")]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _environment(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
