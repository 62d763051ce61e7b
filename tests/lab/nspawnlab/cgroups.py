# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A cgroup per host, which shows whether the host is alive and is the one way to end all of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from .requirements import unified_root
from .settings import LabError, Settings


def _roots() -> list[Path]:
    """Hierarchies that systemd on a host uses: cgroup v2 and, on older machines, name=systemd of v1."""
    roots = [path for path in (unified_root(), Path("/sys/fs/cgroup/systemd")) if path is not None]
    return [path for path in roots if (path / "cgroup.procs").exists()]


def _groups(settings: Settings) -> list[Path]:
    return [root / settings.name for root in _roots()]


_SUPERVISOR = "supervisor"  # what nspawn calls the group into which it moves itself


def join(settings: Settings, host: str, supervisor: bool = False) -> None:
    """Put this process into the host's own cgroup: with nspawn's --keep-unit all hosts would share one. ``supervisor``:
    into that of what keeps the host running, as nspawn does by itself."""
    for group in _groups(settings):
        directory = group / host / (_SUPERVISOR if supervisor else "")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text(str(os.getpid()))


def is_supervised(settings: Settings, host: str) -> bool:
    """Whether the host's nspawn, or its QEMU, runs."""
    return bool(_processes(_groups(settings)[0] / host / _SUPERVISOR))


def init_process(settings: Settings, host: str) -> int | None:
    """PID of the host's systemd."""
    for group in (_groups(settings)[0] / host).glob("payload/**/init.scope"):
        pids = _processes(group)
        if pids:
            return min(pids)
    return None


def all_processes(settings: Settings) -> list[int]:
    """PIDs of the whole lab."""
    return sorted({pid for group in _groups(settings) for pid in _processes(group)})


def existing(settings: Settings) -> list[Path]:
    """The lab's cgroups that exist."""
    return [group for group in _groups(settings) if group.exists()]


def destroy(settings: Settings) -> None:
    """End every process of the lab and remove its cgroups.

    Raises LabError if something cannot be killed within ten seconds.
    """
    _end(_groups(settings))


def destroy_host(settings: Settings, host: str) -> None:
    """The same for one host."""
    _end([group / host for group in _groups(settings)])


def _end(groups: list[Path]) -> None:
    """Kill by cgroup: if only nspawn is killed, the host's processes are reparented and live on."""
    deadline = time.monotonic() + 10
    while processes := [pid for group in groups for pid in _processes(group)]:
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise LabError(f"cannot kill the lab's processes {processes}")
        time.sleep(0.02)
    for group in groups:
        while group.exists():
            for path in sorted(group.rglob("*/"), reverse=True):
                _rmdir(path)
            _rmdir(group)
            if group.exists() and time.monotonic() > deadline:
                raise LabError(f"cannot remove the cgroup {group}")


def _rmdir(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        time.sleep(0.01)  # a process leaves its cgroup a moment after it dies


def _processes(group: Path) -> list[int]:
    pids: list[int] = []
    for path in (group / "cgroup.procs", *group.rglob("cgroup.procs")):
        try:
            pids += [int(line) for line in path.read_text().split()]
        except OSError:
            continue  # the cgroup vanished between listing and reading
    return [pid for pid in dict.fromkeys(pids) if pid > 0]
