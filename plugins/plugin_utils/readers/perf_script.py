# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Page faults as ``perf script`` prints them: which code made a process grow.

    perf record -e page-faults -c 1 -g -p PID
    perf script --show-lost-events -F comm,pid,tid,time,period,event,ip,sym,symoff,dso

    app 4711/4711 18148.510389:          1 page-faults:
            55d987075169 leak+0x12 (/srv/app)
            55d9870751c0 main+0x9 (/srv/app)

What perf has lost it says only with ``--show-lost-events``. Without ``-F``, it says the thread and not the process;
such a file is taken for one process. ``--header`` puts lines that begin with ``#`` before all others.

A fault is taken for 4 KiB; one that the kernel answers with a huge page brings more. Faults are growth: they say
nothing of what was freed. The kernel's own frames are left out, and so are frames at address 0.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import NoReturn

from ..model.frame import Frame, Kind
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure, Sampling, Scheme
from .format_error import FormatError, UnusableError
from .stack_builder import LARGEST, StackBuilder

_PAGE = 4096
_HEADER = re.compile(
    rb"[^\n]{1,64}? +(?:(-?\d{1,10})/)?-?\d{1,10} +(?:\[\d{1,5}\] +)?\d{1,12}\.\d{1,9}: +"
    rb"(?:(\d{1,20}) +)?([^\s]{1,100}):(?:\s|\Z)"
)
# A file may be deleted, or have brackets in its path.
_FRAME = re.compile(rb"\s+([0-9a-f]{1,16}) (.*) \((/[^\n]*|[^()\n]*)\)\Z")
_FAULTS = {b"page-faults", b"faults", b"minor-faults", b"major-faults", b"exceptions:page_fault_user"}
# Of these two, a fault is one; each of the others counts both.
_PARTS = {b"minor-faults", b"major-faults"}
_MODIFIERS = re.compile(rb":[a-zA-Z]{1,10}\Z")
_OFFSET = re.compile(r"\+0x[0-9a-f]{1,16}\Z")
# In place of a file, for a call that the compiler has made a part of the next function.
_INLINED = b"inlined"
# And its modules, by name or file.
_KERNEL = re.compile(rb"\[(?!unknown|vdso|vsyscall|heap|stack|anon|uprobes)|[^\n]*\.ko(?:\.[a-z]+)?\Z")
_RECORD = b"PERF_RECORD_"
_COMMENTS = re.compile(rb"(?:#[^\n]*\n|\n)*")
_LONGEST_HEAD = 1 << 16


def _after_comments(data: bytes) -> int:
    """Where the first event begins."""
    comments = _COMMENTS.match(data, 0, _LONGEST_HEAD)
    return comments.end() if comments else 0


def recognizes(data: bytes) -> bool:
    start = _after_comments(data)
    first = data[start : start + 4096].split(b"\n", 1)[0]
    return _RECORD in first or _HEADER.match(first) is not None


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The faults in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    if b" PERF_RECORD_LOST" in data:
        raise UnusableError(name, "perf lost events, so faults are missing: record with a larger buffer, -m 16M")
    found = _Faults(name)
    position, end = _after_comments(data), len(data)
    while position < end:
        stop = data.find(b"\n\n", position)
        stop = end if stop < 0 else stop
        found.add(data, position, stop)
        position = stop + 2
    return found.records()


class _Faults:
    def __init__(self, name: str) -> None:
        self._name = name
        self._builder = StackBuilder(name)
        self._frames: dict[bytes, int | None] = {}
        self._stacks: dict[bytes, int] = {}
        self._process: bytes | None = None
        self._kinds: set[bytes] = set()
        self._longest = 1

    def add(self, data: bytes, start: int, stop: int) -> None:
        """The event between these positions: a line, then those of its stack. Other records may come first."""
        stack = data.find(b"\n\t", start, stop)
        stack = stop if stack < 0 else stack
        for line in data[start:stack].split(b"\n"):
            if line.strip() and _RECORD not in line:
                self._event(data, start, line, data[stack:stop])

    def _event(self, data: bytes, start: int, line: bytes, stack: bytes) -> None:
        header = _HEADER.match(line)
        if header is None:
            self._fail(data, start, "an event, by 'perf script -F comm,pid,tid,time,period,event,ip,sym,dso'", line)
        process, period, event = header.groups()
        kind = event if event in _FAULTS else _MODIFIERS.sub(b"", event)
        if kind not in _FAULTS:
            shown = event.decode("ascii", "replace")
            raise UnusableError(self._name, f"has {shown} events, not memory: use perf record -e page-faults -c 1 -g")
        self._kinds.add(kind)
        if self._process not in (None, process):
            raise UnusableError(self._name, "has several processes: choose one with perf script --pid PID")
        if period is None:
            why = "does not say how many faults each event stands for: have perf script print the field period, too"
            raise UnusableError(self._name, why)
        self._process = process
        count = int(period)
        self._longest = max(self._longest, count)
        digest = blake2b(stack, digest_size=16).digest()
        number = self._stacks.get(digest)
        if number is None:
            number = self._stacks[digest] = len(self._builder)
            self._builder.add(self._places(data, start, stack), (0, 0))
        self._builder.count(number, count, count * _PAGE)

    def _places(self, data: bytes, start: int, stack: bytes) -> list[int]:
        places = []
        for line in stack.split(b"\n"):
            if not line.strip():
                continue
            if line not in self._frames:
                match = _FRAME.match(line)
                if match is None:
                    self._fail(data, start, "a frame '<address> <symbol> (<file>)'", line)
                self._frames[line] = self._frame(*match.groups())
            place = self._frames[line]
            if place is not None:
                places.append(place)
        return places

    def _frame(self, address: bytes, symbol: bytes, image: bytes) -> int | None:
        if not int(address, 16) or _KERNEL.match(image):
            return None
        module = PurePosixPath(image.decode("utf-8", "replace").removesuffix(" (deleted)")).name
        function = _OFFSET.sub("", symbol.decode("utf-8", "replace"))
        if function == "[unknown]":
            function = f"[{int(address, 16):#x}]"
        if image == _INLINED:
            return self._builder.named(Frame(function, "", Kind.INLINED))
        return self._builder.named(Frame(function, "" if module == "[unknown]" else module))

    def _fail(self, data: bytes, start: int, expected: str, found: bytes) -> NoReturn:
        raise FormatError(self._name, data.count(b"\n", 0, start) + 1, expected, found)

    def records(self) -> Records:
        if self._stacks and not self._frames:
            raise UnusableError(self._name, "has no stacks: use perf record -e page-faults -c 1 -g")
        if len(self._kinds) > 1 and self._kinds != _PARTS:
            names = " and ".join(sorted(kind.decode("ascii") for kind in self._kinds))
            raise UnusableError(self._name, f"has the same faults as {names}: use perf record -e page-faults -c 1 -g")
        sampling = EXACT
        if self._longest > 1:
            sampling = Sampling(Scheme.SYSTEMATIC, min(self._longest * _PAGE, LARGEST))
        return self._builder.records(Measure.GROWN, sampling, unbiased=True)
