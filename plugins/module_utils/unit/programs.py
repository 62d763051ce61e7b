# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a unit's processes run, for whom, and how much memory they hold: hence which program is profiled.

A unit is many processes. Under a launcher the main one holds little, and what grows is what it has started.

This module is private to the collection.
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from typing import Any, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import preload
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_SCRIPT_LIMIT = 1 << 20
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh", "busybox", "env", "timeout", "su", "runuser", "sudo", "podman", "conmon")
# Seconds after which a program is taken for one that stays, however long the unit has been up.
_STAYS = 60.0


class Owner(NamedTuple):
    """Who must be able to write the spool."""

    uid: int
    gid: int


class Process(NamedTuple):
    """A process of a unit: whom it acts for, what it runs, its memory without files in bytes, and when it was started
    (seconds since the epoch)."""

    pid: int
    parent: int
    user: Owner
    program: str
    rss: int
    start: float


class Program(NamedTuple):
    """A program that processes of a unit run, and what they hold together, in bytes."""

    path: str
    processes: list[Process]

    @property
    def rss(self) -> int:
        return sum(process.rss for process in self.processes)

    @property
    def start(self) -> float:
        """When the oldest of its processes was started."""
        return min(process.start for process in self.processes)


def script_text(path: str) -> str | None:
    """The text of a script; None for anything else."""
    if not os.path.isfile(path):
        return None  # a pipe or a device could block us
    try:
        with open(path, "rb") as file:
            head = file.read(_SCRIPT_LIMIT)
    except OSError:
        return None  # systemd will say so itself when it starts the unit
    return head.decode("utf-8", "replace") if head.startswith(b"#!") else None


def running(service: Service, among: list[int] | None = None) -> list[str]:
    """Executables of the running processes (or ``among`` these), the main one first; for a stopped unit, those that
    ExecStart names."""
    pids = ([service.main_pid, *service.pids()] if among is None else among) if service.is_running else []
    found: list[str] = []
    for pid in pids:
        try:
            path = procfs.exe(pid)
        except procfs.ProcfsError:
            continue
        if path and path not in found:
            found.append(path)
    return found or [_interpreter(command) for command in service.commands]


def _interpreter(path: str) -> str:
    """The program that runs a script; the path itself for anything else."""
    text = script_text(path)
    words = text.splitlines()[0][2:].split() if text else []
    return os.path.realpath(words[0] if words else path)


def by_memory(service: Service) -> list[Program]:
    """The programs of a running unit, the one that holds most first."""
    found: dict[str, list[Process]] = {}
    for process in _processes(service):
        found.setdefault(process.program, []).append(process)
    return sorted((Program(*item) for item in found.items()), key=lambda one: (-one.rss, one.path))


def _processes(service: Service) -> list[Process]:
    """The main one first."""
    pids = [service.main_pid, *service.pids()] if service.main_pid else service.pids()
    return [found for pid in dict.fromkeys(pids) if (found := _look(pid))]


def _look(pid: int) -> Process | None:
    """None if it has just ended."""
    try:
        status = procfs.status(pid)
        user = Owner(int(status["Uid"].split()[1]), int(status["Gid"].split()[1]))
        kib = sum(int(status.get(name, "0 kB").split()[0]) for name in ("RssAnon", "VmSwap"))
        start = procfs.start_time(pid)
        return Process(pid, int(status.get("PPid", "0")), user, procfs.exe(pid) or "", kib * 1024, start)
    except procfs.ProcfsError:
        return None


def executable(service: Service) -> str:
    """The program to profile: the main one, or the one that holds most of the unit's memory, if it is there to stay.

    One that is profiled already remains it, as long as it holds a quarter. A shell is none. Raises Refusal where a
    stopped unit does not say.
    """
    names = running(service)
    main = names[0] if names and not _is_shell(names[0]) else ""
    found = [one for one in by_memory(service) if one.path and not _is_shell(one.path)] if service.is_running else []
    if not found:
        if main:
            return main
        raise Refusal(
            "unknown-executable",
            f"{service.name} starts its program through a shell, and no process of it but a shell runs now, so its"
            " program is unknown. Start it first, or name the program (agent_settings: executable)",
        )
    whole = sum(one.rss for one in found)
    now = _profiled_now(service)
    if any(one.path == now and one.rss * 4 >= whole for one in found):
        return now
    largest = found[0]
    began = next((one.start for one in found if one.path == main), largest.start)
    stays = time.time() - largest.start >= min(_STAYS, (time.time() - began) / 2)
    return largest.path if not main or (stays and largest.rss * 2 > whole) else main


def _is_shell(path: str) -> bool:
    return os.path.basename(path) in _SHELLS


def _profiled_now(service: Service) -> str:
    """The program that our drop-in names; empty if there is none."""
    # A rollback that systemd could not read any more has taken the file away.
    paths = [path for path in service.drop_ins if drop_in.is_ours(path) and os.path.exists(path)]
    ours = systemd.read_assignments(paths)
    variables = drop_in.read_environment(ours, {}, service.name).variables
    return variables[preload.EXECUTABLE].value if preload.EXECUTABLE in variables else ""


def seen(service: Service, program: str, children: bool) -> list[dict[str, Any]]:
    """The programs of a running unit, the one that holds most first: how many processes, their memory without files in
    bytes, and how much of that is in processes that have an agent, or will have one."""
    found = []
    for one in by_memory(service):
        own = {process.pid for process in one.processes}
        with_agent = [
            process.rss for process in one.processes if one.path == program and (children or process.parent not in own)
        ]
        found.append(
            {
                "executable": one.path,
                "processes": len(one.processes),
                "rss": one.rss,
                "processes_with_agent": len(with_agent),
                "rss_with_agent": sum(with_agent),
            }
        )
    return found


def sentence(found: list[dict[str, Any]], program: str) -> str:
    """What an agent will see of a unit, given ``seen``: ``/usr/bin/java is profiled: 1 process, 533.0 of the unit's
    737.0 MiB. Not profiled, with 200.0 MiB: /usr/sbin/httpd``. Empty where nothing runs."""
    own = next((one for one in found if one["executable"] == program), None)
    if own is None:
        return ""
    count = own["processes_with_agent"]
    processes = "1 process" if count == 1 else f"{count} processes"
    whole = sum(one["rss"] for one in found)
    text = f"{program} is profiled: {processes}, {_mib(own['rss_with_agent'])} of the unit's {_mib(whole)} MiB"
    left = [(own["rss"] - own["rss_with_agent"], f"{own['processes'] - count} more of its processes")]
    left += [(one["rss"], one["executable"]) for one in found if one is not own]
    most, who = max(left)
    if most * 4 < whole:
        return text
    return f"{text}. Not profiled, with {_mib(most)} MiB: {who}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f}"


def owner(service: Service) -> Owner:
    """The service's user and group, as numbers."""
    user, group = service.text["User"], service.text["Group"]
    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user or "root")
    except KeyError:
        raise Refusal(
            "no-such-user",
            f"the user {user} of {service.name} does not exist on this host; create it, or correct User=",
        ) from None
    if not group:
        return Owner(entry.pw_uid, entry.pw_gid)
    try:
        return Owner(entry.pw_uid, int(group) if group.isdigit() else grp.getgrnam(group).gr_gid)
    except KeyError:
        raise Refusal(
            "no-such-group",
            f"the group {group} of {service.name} does not exist on this host; create it, or correct Group=",
        ) from None


def writers(service: Service, declared: Owner, program: str, children: bool = False) -> list[Owner]:
    """Who will write the dumps, and the spool's owner first: a service that systemd starts as root may change its user
    itself, or only its workers do, where ``children`` are profiled too. Root can write what belongs to one other user,
    but not they what is root's; of workers of several users, the spool is root's, who lets all of them in."""
    family = of(service, program)
    if declared.uid or not family:
        return [declared]
    first = family[0].user
    others = sorted({process.user for process in family if process.user.uid}) if children and not first.uid else []
    several = len({one.uid for one in others}) > 1
    return [first, *others] if several else others[:1] or [first]


def file_of(service: Service, program: str) -> str:
    """Where the file of a program of the service is: in a container, it is not what has that path here."""
    inside = service.contained()
    pid = next((found.pid for found in of(service, program) if found.pid in inside), 0) if inside else 0
    return f"{procfs.directory(pid)}/root{program}" if pid else program


def has_workers(service: Service, program: str) -> bool:
    """Whether children that run the program, too, could be profiled: under one user but for a main process of root, or,
    outside of containers, under any users but root's that such a process gives them."""
    family = of(service, program)
    several = len({process.user for process in family if process.user.uid}) > 1
    return len(family) > 1 and not (several and (family[0].user.uid or service.contained()))


def of(service: Service, program: str) -> list[Process]:
    """The running processes with the program, the main one first."""
    return [found for found in _processes(service) if found.program == program]
