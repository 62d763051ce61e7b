# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which dumps of a host are ready to be fetched, and why the others are not.

This module is private to the collection.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import (
    dump_name,
    limits,
    sidecar,
    unit_name,
    values,
)
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.formats.jvm_memory import JvmMemory
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import Identity
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory, dump, provenance

#: seconds without a write after which a dump counts as finished, if the writer's descriptors cannot be seen
_QUIET = 10.0
#: how many dumps that cannot be fetched are named, of each kind; the rest are only counted
_NAMED = 100


@dataclass
class ListedCapture:
    """A dump that can be fetched. ``process`` and ``images`` are indices, as many dumps share them.

    ``jit`` says whether its process compiles code, ``map`` identifies the map of that code beside it, ``lives`` and
    ``holders`` those beside it, and ``jvm`` is what a JVM held outside malloc, if it was asked.
    """

    unit: str
    name: str
    identity: Identity
    sha256: str
    time: float
    process: int
    images: list[int]
    jit: bool
    map: Identity | None
    agent: sidecar.AgentFacts | None
    agent_problem: str | None
    jvm: JvmMemory | None = None
    lives: Identity | None = None
    holders: Identity | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that is sent."""
        return {
            **vars(self),
            "identity": list(self.identity),
            "map": list(self.map) if self.map else None,
            "lives": list(self.lives) if self.lives else None,
            "holders": list(self.holders) if self.holders else None,
            "agent": self.agent.to_json() if self.agent else None,
            "jvm": self.jvm.to_json() if self.jvm else None,
        }


@dataclass(frozen=True)
class LeftDump:
    """A dump that cannot be fetched, and why. ``size`` is None if it was not opened."""

    unit: str
    name: str
    size: int | None
    reason: str


@dataclass(frozen=True)
class Listing:
    """What is in the spools.

    ``left`` counts captures beyond the limit of one run. ``counts`` counts all dumps that cannot be fetched, by kind;
    ``others`` names some of them. ``absent`` are units without a spool, ``problems`` why a spool was not entered.
    """

    captures: list[ListedCapture]
    processes: list[provenance.FoundProcess]
    images: list[provenance.FoundImage]
    left: int
    others: dict[str, list[LeftDump]]
    counts: dict[str, int]
    absent: list[str]
    problems: list[str]

    def to_json(self) -> dict[str, Any]:
        """The form that is sent to the controller, which trusts none of it."""
        return {
            **vars(self),
            "captures": [capture.to_json() for capture in self.captures],
            "processes": [process._asdict() for process in self.processes],
            "images": [image._asdict() for image in self.images],
            "others": {kind: [vars(left) for left in dumps] for kind, dumps in self.others.items()},
        }


class Finder:
    """Searches the spools of a host.

    ``max_dump`` is in bytes. ``limit`` is the most captures of one run; further ones are only counted.
    """

    def __init__(self, examiner: provenance.Examiner, max_dump: int, limit: int) -> None:
        self._examiner = examiner
        self._max_dump = max_dump
        self._limit = limit
        self._captures: list[ListedCapture] = []
        self._processes: dict[str, int] = {}
        self._process_facts: list[provenance.FoundProcess] = []
        self._images: dict[provenance.FoundImage, int] = {}
        self._left = 0
        self._others: dict[str, list[LeftDump]] = {"incomplete": [], "unreadable": [], "writing": []}
        self._counts = {kind: 0 for kind in self._others}

    def search(self, spooled: directory.Spool) -> None:
        """Search one spool, the dumps of each process in the order in which it wrote them."""
        for name in sorted(spooled.names(), key=_order):
            if len(self._captures) >= self._limit:
                self._left += 1
                continue
            try:
                fd = spooled.open(name)
            except directory.SpoolError as exc:
                self._other("unreadable", spooled.unit, name, None, str(exc))
                continue
            try:
                self._look_at(spooled, name, fd)
            finally:
                os.close(fd)

    def _look_at(self, spooled: directory.Spool, name: str, fd: int) -> None:
        unit = spooled.unit
        status = os.fstat(fd)
        parts = dump_name.parse(name)
        if parts is None:
            return
        agent, agent_problem = _agent(spooled, name, status.st_size)
        namespace = agent.pid_namespace if agent else 0
        pid = self._examiner.pid_here(parts.pid, namespace)
        written = self._examiner.is_written(pid, status.st_dev, status.st_ino)
        is_fresh = 0 <= time.time() - status.st_mtime < _QUIET
        if written is None:
            written = is_fresh
        if written:
            self._other("writing", unit, name, status.st_size, "its process is writing it")
            return
        if is_fresh and not agent and not agent_problem and _has_agent(unit, parts):
            self._other("writing", unit, name, status.st_size, "its agent has yet to write what belongs to it")
            return
        too_large = self._too_large(status.st_size)
        if too_large:
            self._other("unreadable", unit, name, status.st_size, too_large)
            return
        try:
            content = dump.read(fd, status.st_size, parts.prefix)
        except dump.DumpError as exc:
            self._other("unreadable" if exc.finished else "incomplete", unit, name, status.st_size, str(exc))
            return
        identity = Identity.of(status)
        if Identity.of(os.fstat(fd)) != identity:
            self._other("writing", unit, name, status.st_size, "it changed while it was read")
            return
        if content.mappings:
            process = self._examiner.process(pid, content.mappings, status.st_mtime, parts.pid)
        else:
            process = self._examiner.named_process(parts, status.st_mtime)
        if process.key not in self._processes:
            self._processes[process.key] = len(self._process_facts)
            self._process_facts.append(process)
        mappings = self._examiner.mappings_now(process) if content.nameless else content.mappings
        elsewhere = self._examiner.is_elsewhere(namespace)
        images = self._examiner.images(pid, mappings, status.st_mtime_ns, elsewhere)
        self._captures.append(
            ListedCapture(
                unit,
                name,
                identity,
                content.sha256,
                values.nearest_time(status.st_mtime),
                self._processes[process.key],
                [self._images.setdefault(image, len(self._images)) for image in images],
                any(mapping.executable and mapping.file_less for mapping in content.mappings),
                _beside(spooled, name, dump_name.PERF_MAP, limits.LARGEST_PERF_MAP),
                agent,
                agent_problem,
                lives=_beside(spooled, name, dump_name.LIVES, limits.LARGEST_LIVES),
                holders=_beside(spooled, name, dump_name.HOLDERS, limits.LARGEST_HOLDERS),
            )
        )

    def _too_large(self, size: int) -> str | None:
        if size > limits.LARGEST_DUMP:
            return f"it is larger than any dump that can be read ({limits.LARGEST_DUMP} bytes)"
        return f"it is larger than max_dump ({self._max_dump} bytes)" if size > self._max_dump else None

    def _other(self, kind: str, unit: str, name: str, size: int | None, reason: str) -> None:
        self._counts[kind] += 1
        if len(self._others[kind]) < _NAMED:
            self._others[kind].append(LeftDump(unit, name, size, reason))

    def result(self, absent: list[str], problems: list[str]) -> Listing:
        """Everything found so far."""
        images = list(self._images)
        return Listing(
            self._captures, self._process_facts, images, self._left, self._others, self._counts, absent, problems
        )


def _order(name: str) -> tuple[str, int, int, str]:
    parts = dump_name.parse(name)
    return (parts.start or "", parts.pid, parts.sequence, name) if parts else ("", 0, 0, name)


def _has_agent(unit: str, parts: dump_name.DumpName) -> bool:
    """Whether the process has an agent, which writes its sidecar last."""
    is_own = parts.prefix == dump_name.PREFIX
    return is_own and os.path.lexists(os.path.join(places.sockets_of(unit), f"{parts.pid}.sock"))


def _agent(spooled: directory.Spool, name: str, size: int) -> tuple[sidecar.AgentFacts | None, str | None]:
    """What the agent wrote beside the dump, or why it cannot be used. A dump needs no sidecar."""
    try:
        fd = spooled.open_companion(name, dump_name.SIDECAR)
        if fd is None:
            return None, None
        try:
            return sidecar.read(fd, name, size), None
        finally:
            os.close(fd)
    except OffheapError as exc:
        return None, str(exc)[:500]


def _beside(spooled: directory.Spool, name: str, suffix: str, largest: int) -> Identity | None:
    """The identity of the file beside the dump, if there is one that can be trusted."""
    try:
        fd = spooled.open_companion(name, suffix)
    except directory.SpoolError:
        return None
    if fd is None:
        return None
    try:
        identity = Identity.of(os.fstat(fd))
    finally:
        os.close(fd)
    return identity if 0 < identity.size <= largest else None


def find(root_path: str, units: list[str], max_dump: int, limit: int, examiner: provenance.Examiner) -> Listing:
    """Search the spools of the units, or all spools. Raises SpoolError, UnitNameError."""
    finder = Finder(examiner, max_dump, limit)
    wanted = [unit_name.service(unit) for unit in units]
    absent: list[str] = []
    problems: list[str] = []
    searched: set[str] = set()
    if os.path.isdir(root_path):
        with directory.Root(root_path) as root:
            for unit in wanted or root.units():
                try:
                    spooled = root.spool(unit) or root.spool(systemd.name_of(unit))  # named by an alias
                except directory.SpoolError as exc:
                    problems.append(str(exc))
                    continue
                if spooled is None:
                    absent.append(unit)
                    continue
                with spooled:
                    if spooled.unit not in searched:
                        finder.search(spooled)
                searched.add(spooled.unit)
    else:
        absent = wanted
    return finder.result(absent, problems)


class Remaining(NamedTuple):
    """Dumps that are still in a spool: those that could be collected, and why each of the others never can be."""

    waiting: list[str]
    lost: dict[str, str]


def remaining(root_path: str, unit: str) -> Remaining:
    """What has not been collected from a unit whose processes dump no more. Raises SpoolError, UnitNameError."""
    found = Remaining([], {})
    if not os.path.isdir(root_path):
        return found
    with directory.Root(root_path) as root:
        spooled = root.spool(unit)
        if spooled is None:
            return found
        with spooled:
            for name in sorted(spooled.names()):
                reason = _never_collected(spooled, name)
                if reason is None:
                    found.waiting.append(name)
                else:
                    found.lost[name] = reason
    return found


def _never_collected(spooled: directory.Spool, name: str) -> str | None:
    try:
        fd = spooled.open(name)
        try:
            parts = dump_name.parse(name)
            if parts:
                dump.read(fd, os.fstat(fd).st_size, parts.prefix)
        finally:
            os.close(fd)
    except (directory.SpoolError, dump.DumpError) as exc:
        return str(exc)
    return None
