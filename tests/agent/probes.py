# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Attach to the agent's probes as a profiler does: by the notes in its file, through the kernel's uprobes.

A small reader of its own, by what perf_event_open(2) says; Linux 4.20 or later, root.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf_headers

PMU = Path("/sys/bus/event_source/devices/uprobe/type")
SYSCALL = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
#: the bits of rdi, rsi and rdx, or of x0 to x2, among those of a sample, and where each of them is in it
REGISTERS, ORDER = {"x86_64": (0b111000, (2, 1, 0)), "aarch64": (0b111, (0, 1, 2))}[os.uname().machine]
ON_EXEC_CLOSE, TID, TIME, REGS_USER = 1 << 3, 1 << 1, 1 << 2, 1 << 12
LOST, SAMPLE = 2, 9
PAGES = 2048
ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
LIBC = ctypes.CDLL(None, use_errno=True)


class Note(NamedTuple):
    name: str
    arguments: str
    place: int
    semaphore: int


class Event(NamedTuple):
    """One hit of a probe; ``time`` in nanoseconds. ``values`` has as many as a probe's arguments can be."""

    time: int
    name: str
    pid: int
    values: tuple[int, int, int]


def notes(library: Path) -> list[Note]:
    """Those of the provider otel_memory, as binutils reads them; places are offsets in the file."""
    text = subprocess.run(["readelf", "-n", library], capture_output=True, text=True, check=True).stdout
    pattern = (
        r"Provider: otel_memory\n +Name: (\w+)\n +Location: (0x\w+), Base: 0x\w+, Semaphore: (0x\w+)\n"
        r" +Arguments: (.*)\n"
    )
    loaded = [part for part in elf_headers.read(library).programs if part.type == elf_headers.PT_LOAD]

    def offset(address: int) -> int:
        (part,) = [one for one in loaded if one.address <= address < one.address + one.size]
        return part.offset + address - part.address

    return [
        Note(name, arguments.strip(), offset(int(place, 16)), offset(int(semaphore, 16)))
        for name, place, semaphore, arguments in re.findall(pattern, text)
    ]


class Buffer:
    """What one probe tells on one processor."""

    def __init__(self, library: Path, note: Note, cpu: int) -> None:
        self.note = note
        path = ctypes.create_string_buffer(bytes(library))
        attributes = ATTRIBUTES.pack(
            int(PMU.read_text()),
            ATTRIBUTES.size,
            note.semaphore << 32,
            1,  # each
            TID | TIME | REGS_USER,
            0,
            0,
            0,
            0,
            ctypes.addressof(path),
            note.place,
            0,
            REGISTERS,
            0,
            0,
            0,
            0,
            0,
            0,
        )
        self.file = LIBC.syscall(SYSCALL, attributes, -1, cpu, -1, ON_EXEC_CLOSE)
        if self.file < 0:
            raise OSError(ctypes.get_errno(), f"perf_event_open: {os.strerror(ctypes.get_errno())}")
        self.ring = mmap.mmap(self.file, (1 + PAGES) * mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)

    def close(self) -> None:
        self.ring.close()
        os.close(self.file)

    def events(self) -> Iterator[Event]:
        """All since it was opened, if the ring held them."""
        (head,) = struct.unpack_from("<Q", self.ring, 1024)
        at = mmap.PAGESIZE
        assert head <= PAGES * mmap.PAGESIZE, "more than it holds"
        while at < mmap.PAGESIZE + head:
            kind, _misc, size = struct.unpack_from("<IHH", self.ring, at)
            assert kind != LOST
            if kind == SAMPLE:
                pid, _tid, time, _abi, *values = struct.unpack_from("<IIQQQQQ", self.ring, at + 8)
                first, second, third = (values[place] for place in ORDER)
                yield Event(time, self.note.name, pid, (first, second, third))
            at += size


class Attached:
    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers

    def events(self) -> list[Event]:
        """All so far, of all processes, in their order."""
        return sorted(event for buffer in self.buffers for event in buffer.events())


@contextlib.contextmanager
def attached(library: Path) -> Iterator[Attached]:
    with contextlib.ExitStack() as stack:
        buffers = []
        for note in notes(library):
            for cpu in os.sched_getaffinity(0):
                buffers.append(Buffer(library, note, cpu))
                stack.callback(buffers[-1].close)
        yield Attached(buffers)
