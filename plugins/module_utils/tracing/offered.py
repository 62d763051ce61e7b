# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The profiles that a running unit offers by itself, into its spool: nothing is preloaded and nothing restarted.

They are named so that all of one process and one source are one series.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, limits, unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.spool import offered_profile
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import endpoint, into_spool, profile_files
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.endpoint import OfferError
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service, timer
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner

# Digits of a sequence number in a dump's name.
_SEQUENCES = 10**9
_LONGEST_TOKEN = 8192
_TOKEN = re.compile(r"([!-~]{1,8000})\s*")
# What must stay free on the file system of the spool.
_RESERVE = limits.LARGEST_SPOOL


@dataclass(frozen=True)
class Wanted:
    """Where a unit offers profiles: a URL, asked over a Unix socket if ``socket`` is its path, or a ``directory``.

    One is taken now and, if ``every`` is not 0, ``count`` more so many seconds apart. ``token_file`` and
    ``certificate_file`` are paths of files with what the URL takes: the timer knows the paths alone.
    """

    unit: str
    url: str = ""
    socket: str = ""
    directory: str = ""
    token_file: str = ""
    certificate_file: str = ""
    every: int = 0
    count: int = 0

    def check(self) -> None:
        """Raises OfferError."""
        if bool(self.directory) == bool(self.url):
            raise OfferError("name either a url (with socket, where it is asked over a Unix socket) or a directory")
        if self.url:
            endpoint.Endpoint.of(self.url, self.socket)
        if (self.token_file or self.certificate_file) and not self.url:
            raise OfferError("a token_file or certificate_file goes with a url: nobody asks who it is in a directory")
        if self.certificate_file and not self.url.startswith("https:"):
            raise OfferError("a certificate_file goes with a url of https://")
        if self.every and not (5 <= self.every <= 86400 and 1 <= self.count <= 10000):
            raise OfferError("every has to be between 5 seconds and a day, and count between 1 and 10000")


@dataclass
class Taken:
    """What is new in the unit's spool, by name, and of files that were left in a directory why they were."""

    unit: str
    pid: int
    dumps: list[str] = field(default_factory=list)
    goes_on: bool = False
    left: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form that is sent."""
        return vars(self)


class _Process(NamedTuple):
    """A process, and when it started: in milliseconds since the boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> _Process:
        return cls(pid, procfs.start_ticks(pid) * 1000 // os.sysconf("SC_CLK_TCK"))

    @property
    def since(self) -> float:
        """The same in seconds since the epoch."""
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + self.started / 1000

    def name(self, prefix: str, taken: int) -> str:
        """The name of what was taken then (nanoseconds since the epoch)."""
        boot = procfs.boot_id().replace("-", "")
        sequence = taken // 10**9 % _SEQUENCES
        return dump_name.of_offer(prefix, boot, self.started, self.pid, sequence, taken)


def begin(wanted: Wanted, check_mode: bool = False) -> Taken:
    """Take what there is now and, if wanted, set up a timer for more. In check mode, change nothing.

    Raises OffheapError.
    """
    wanted.check()
    result = take(wanted, check_mode)
    if wanted.every:
        changes = Changes(check_mode)
        timer.start(changes, result.unit, f"{__name__}.again", vars(wanted), wanted.every, wanted.count)
        result.goes_on = changes.any
    return result


def again(unit: str) -> None:
    """What the timer runs. Whatever is wrong is only said, in the journal: a failed unit would alarm somebody."""
    try:
        taken = take(Wanted(**timer.next_task(unit)))
        said = f"took {', '.join(taken.dumps) or 'nothing new'} of {unit}"
    except (OffheapError, OSError) as error:
        said = f"nothing was taken of {unit}: {error}"
    sys.stdout.write(f"{said}\n")


def take(wanted: Wanted, check_mode: bool = False) -> Taken:
    """Take what there is now. In check mode, put none of it into the spool. Raises OffheapError."""
    unit = service.load(unit_name.service(wanted.unit))
    pids = unit.pids()
    if not pids:
        raise OfferError(f"{unit.name} has no process: it is {unit.text['ActiveState']}. Start it first")
    if wanted.directory:
        return _from_directory(wanted.directory, unit, pids, check_mode)
    token = _token(wanted.token_file) if wanted.token_file else ""
    if wanted.certificate_file:
        _check_others(wanted.certificate_file, "certificate")
    where = endpoint.Endpoint.of(wanted.url, wanted.socket)
    answer = endpoint.ask(where, unit.name, unit.pids, token, wanted.certificate_file)
    result = Taken(unit.name, answer.pid)
    data = offered_profile.unpacked(answer.body)
    name = _Process.of(answer.pid).name(offered_profile.prefix_of(data), time.time_ns())
    _keep(result, name, data, None, check_mode)
    return result


def _check_others(path: str, what: str) -> None:
    """Raises OfferError if others than root decide what is in a file."""
    try:
        fault = trusted_path.fault(path)
    except OSError as exc:
        raise OfferError(f"cannot read the {what} in {path}: {exc.strerror}") from exc
    if fault:
        raise OfferError(f"the {what} in {path} could be another file's content: {fault}. Only root may write there")


def _token(path: str) -> str:
    """The token in a file. Raises OfferError if others than root decide what is in it, which is sent to a service."""
    _check_others(path, "token")
    try:
        with open(path, "rb") as stream:
            content = stream.read(_LONGEST_TOKEN + 1)
    except OSError as exc:
        raise OfferError(f"cannot read the token in {path}: {exc.strerror}") from exc
    found = _TOKEN.fullmatch(content.decode("ascii", "replace"))
    if not found:
        raise OfferError(f"{path} holds no token: expected one line of printable characters without blanks")
    return found[1]


def _from_directory(path: str, unit: service.Service, pids: list[int], check_mode: bool) -> Taken:
    process = _Process.of(unit.main_pid or pids[0])
    result = Taken(unit.name, process.pid)
    for file in profile_files.find(path, pids, process.since, result.left):
        try:
            data = offered_profile.unpacked(file.data)
            name = process.name(offered_profile.prefix_of(data), file.written)
        except offered_profile.NoProfileError as exc:
            result.left[file.name] = str(exc)
            continue
        if not into_spool.has(unit.name, name):
            _keep(result, name, data, file.written, check_mode)
    return result


def _keep(result: Taken, name: str, data: bytes, written: int | None, check_mode: bool) -> None:
    result.dumps.append(name)
    if check_mode:
        return
    into_spool.have(result.unit, Owner(0, 0))
    free = shutil.disk_usage(places.SPOOLS).free
    if free < len(data) + _RESERVE:
        raise OfferError(
            f"the file system of {places.SPOOLS} has {free >> 20} MiB free, and {_RESERVE >> 20} MiB must stay: make"
            " room there"
        )
    with open(os.memfd_create("profile"), "w+b") as file:
        file.write(data)
        file.flush()
        into_spool.keep(result.unit, name, file.fileno(), len(data), written)
