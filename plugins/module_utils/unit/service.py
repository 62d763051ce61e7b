# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service unit as it is now: its state, its processes, its sandbox, its files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in

# Properties with one value, and those that systemd prints as a list of words.
_SINGLE = """
    ActiveEnterTimestampMonotonic ActiveState CanStart CanStop ControlGroup DynamicUser FragmentPath Group Id
    InvocationID KillMode LimitFSIZESoft LimitNOFILESoft LimitNPROCSoft LoadState MainPID NRestarts NeedDaemonReload
    NetworkNamespacePath NoNewPrivileges PrivateNetwork ProtectSystem Result RootDirectory RootImage SubState
    SystemCallErrorNumber Type UMask User WorkingDirectory
"""
_LISTS = """
    DropInPaths InaccessiblePaths NoExecPaths ReadOnlyPaths RestrictAddressFamilies RuntimeDirectory StateDirectory
    SystemCallFilter TemporaryFileSystem
"""
#: names of the units that a restart takes along, and of those that start the unit (systemd.unit(5)); not quoted
DEPENDENTS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
TRIGGERS = "TriggeredBy"
_NAMES = "Names"

# With these, systemd ends no process but the main one (systemd.kill(5)).
_SPARING = ("process", "none")
# Where systemd-sysv-generator(8) puts units.
_OF_SCRIPTS = "/run/systemd/generator.late/"
# ExecStart as systemd prints it: argv[] is unquoted, so only the whole text can be searched.
_EXEC_START = re.compile(r"{ path=(.*?) ; argv\[\]=(.*?) ; ignore_errors=", re.DOTALL)
# Where systemd looks for a command without a directory (systemd.exec(5), "Environment Variables").
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Service:
    """Properties of one service unit. Paths in ``drop_ins`` are in the order in which systemd applies them."""

    name: str
    text: dict[str, str]
    lists: dict[str, list[str]]
    commands: list[str]
    arguments: list[str]

    @property
    def names(self) -> list[str]:
        """Its name and its aliases. An update makes one of what was a unit of its own, with files of ours."""
        return list(dict.fromkeys([self.name, *filter(unit_name.is_service, self.lists[_NAMES])]))

    @property
    def drop_ins(self) -> list[str]:
        """Every drop-in that systemd has read, including ours."""
        return self.lists["DropInPaths"]

    @property
    def own_files(self) -> list[str]:
        """The unit file and its drop-ins without ours."""
        fragment = [self.text["FragmentPath"]] if self.text["FragmentPath"] else []
        return fragment + [path for path in self.drop_ins if not drop_in.is_ours(path)]

    @property
    def is_running(self) -> bool:
        """Whether the unit has processes that a restart would replace."""
        return self.text["ActiveState"] in ("active", "reloading", "activating", "deactivating")

    @property
    def spares_processes(self) -> bool:
        """Whether processes of the unit outlive its restart.

        Units that systemd makes of scripts in /etc/init.d have KillMode=process too, but the script ends what it began.
        """
        return self.text["KillMode"] in _SPARING and not self.text["FragmentPath"].startswith(_OF_SCRIPTS)

    @property
    def restarts(self) -> int:
        """How often systemd has restarted the unit on its own."""
        return int(self.text["NRestarts"] or 0)

    @property
    def seconds_up(self) -> float:
        """How long it has been active."""
        return time.monotonic() - int(self.text["ActiveEnterTimestampMonotonic"] or 0) / 1e6

    @property
    def main_pid(self) -> int:
        """The main process, or 0 if systemd knows none."""
        return int(self.text["MainPID"] or 0)

    def pids(self) -> list[int]:
        """The unit's processes, children included."""
        return sorted({*systemd.processes(self.text["ControlGroup"]), *([self.main_pid] if self.main_pid else [])})

    @property
    def has_left(self) -> bool:
        """Whether its main process has gone into another control group, such as a session's (pam_systemd(8)): there,
        systemd ends none of those that it has started."""
        inside = systemd.processes(self.text["ControlGroup"])
        return self.main_pid not in (0, *inside) and os.path.exists(f"/proc/{self.main_pid}")

    @property
    def start_obstacle(self) -> str:
        """Why systemd could not start it again, whose program or directory is not there; empty if they are.

        They may be only where the service sees them, or only outside of the root that it has chosen.
        """
        roots = ("", f"/proc/{self.main_pid}/root")
        for path in self.commands:
            # Where systemd looks for one without a directory, the unit may say itself (ExecSearchPath=).
            if os.path.isabs(path) and not any(os.access(root + path, os.X_OK) for root in roots):
                return f"{path}, its ExecStart=, is missing or not executable"
        directory = self.text["WorkingDirectory"]
        # That of a service that is down may be one that systemd makes (RuntimeDirectory=).
        if self.main_pid and os.path.isabs(directory) and not any(os.path.isdir(root + directory) for root in roots):
            return f"{directory}, its WorkingDirectory=, is missing"
        return ""

    @property
    def runs_podman(self) -> bool:
        """Whether the unit's main command is Podman, so that the service is in a container."""
        return bool(self.commands) and os.path.basename(self.commands[0]) == "podman"

    def contained(self) -> list[int]:
        """The processes of the unit's container."""
        if not self.runs_podman:
            return []
        found, here = [], procfs.pid_namespace(os.getpid())
        for pid in self.pids():
            with contextlib.suppress(procfs.ProcfsError):  # it has just ended
                if procfs.pid_namespace(pid) != here:
                    found.append(pid)
        return found

    def leaders(self) -> list[int]:
        """The main process or, if systemd knows none, those that no other of the unit's processes has started. In a
        unit with a container, the first process of that."""
        contained = self.contained()
        if contained:
            return [pid for pid in contained if _parent(pid) not in contained]
        if self.main_pid:
            return [self.main_pid]
        pids = self.pids()
        return [pid for pid in pids if _parent(pid) not in pids]


def _parent(pid: int) -> int:
    """0 if the process has just ended."""
    try:
        return int(procfs.status(pid).get("PPid", "0"))
    except procfs.ProcfsError:
        return 0


def load(name: str) -> Service:
    """Ask systemd for a unit under its canonical name.

    Raises SystemdError when systemd cannot be asked.
    """
    names = (*DEPENDENTS, TRIGGERS, _NAMES)
    values = systemd.show(unit_name.service(name), ("ExecStart", *_SINGLE.split(), *_LISTS.split(), *names))
    text = {key: values.get(key, [""])[0] for key in _SINGLE.split()}
    lists = {key: systemd.split_words(" ".join(values.get(key, []))) for key in _LISTS.split()}
    lists.update({key: " ".join(values.get(key, [])).split() for key in names})
    starts = [_EXEC_START.match(line) for line in values.get("ExecStart", [])]
    commands = [shutil.which(match.group(1), path=_PATH) or match.group(1) for match in starts if match]
    arguments = [match.group(2) for match in starts if match]
    return Service(text["Id"] or name, text, lists, commands, arguments)


def maps_file(pid: int, path: str) -> bool:
    """Whether a process has a file mapped, by its resolved path."""
    return os.path.realpath(path) in procfs.mapped_files(pid)


def pids_mapping(prefix: str, among: list[int] | None = None) -> list[int]:
    """Processes that have any file below ``prefix`` mapped: on the whole host, or among those given.

    A library that has traced a process is no part of how that runs; nor is the agent, unless ``prefix`` is itself:
    else it comes with an allocator of ours or of the drop-in, or was attached.
    """
    found, wanted = [], _as_mapped(prefix.rstrip("/"))
    below = tuple(f"{path}/" for path in wanted)
    beside = tuple(f"{path}/" for path in _as_mapped(places.TRACER, places.AGENT))
    for pid in procfs.pids() if among is None else among:
        try:
            paths = [path for path in procfs.mapped_files(pid) if path in wanted or not path.startswith(beside)]
            if any(path in wanted or path.startswith(below) for path in paths):
                found.append(pid)
        except procfs.ProcfsError:
            continue  # it has ended, or we may not read it: then it holds nothing of ours either
    return found


def _as_mapped(*paths: str) -> list[str]:
    """Those paths, as a container shows them, and what they lead to, as the host does: /opt may be a link."""
    return [*paths, *map(os.path.realpath, paths)]


def carries(pid: int, environment: Mapping[str, str]) -> bool:
    """Whether a process was started with the variables of our injection.

    A start script may have added libraries, or options of a runtime, to ours. A program that writes its title over its
    environment (nginx, PostgreSQL) no longer shows any of the variables: then the mapped library must do.
    """
    actual = procfs.environ(pid)
    if not set(actual) & set(environment):
        return "LD_PRELOAD" in environment and maps_file(pid, re.split("[: ]", environment["LD_PRELOAD"])[0])
    return all(_words(name, value) <= _words(name, actual.get(name, "")) for name, value in environment.items())


def _words(name: str, value: str) -> set[str]:
    """The parts of a variable to compare: MALLOC_CONF as a whole, other lists word by word."""
    return {value} if name.endswith("MALLOC_CONF") else set(re.split("[: ]", value))


def pids_under_us(pids: list[int], unit: str, library: str | None = None) -> list[int]:
    """The processes that run under our injection for ``unit``, whatever its options were.

    Recognised by the environment that they were started with or, as that can be overwritten, by what they have mapped:
    a file of ours, or the ``library`` that the drop-in names.
    """
    ours = set(pids_mapping(places.INSTALLED, pids))
    if library:
        ours |= set(pids_mapping(os.path.realpath(library), pids))
    for pid in pids:
        try:
            if _is_of(procfs.environ(pid), unit):
                ours.add(pid)
        except procfs.ProcessGone:
            continue
    return sorted(ours)


def pids_away(unit: Service) -> list[int]:
    """The processes that run under our injection for the unit, but have left its control group."""
    found = []
    for pid in sorted(set(procfs.pids()) - set(unit.pids())):
        try:
            environment = procfs.environ(pid)
            libraries = re.split("[: ]", environment.get("LD_PRELOAD", ""))
            if _is_of(environment, unit.name) and libraries[0] and maps_file(pid, libraries[0]):
                found.append(pid)
        except procfs.ProcfsError:
            continue  # it has ended, or is a kernel's
    return found


def _is_of(environment: Mapping[str, str], unit: str) -> bool:
    prefix = f"prof_prefix:{places.spool_of(unit)}/"
    return prefix in environment.get("MALLOC_CONF", "") or environment.get("OFFHEAP_UNIT") == unit
