# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Small archives with all that can befall captures, for property tests: described processes, and their captures.

What is large is so by the limits in ``SMALL_LIMITS``, so that an archive takes a second.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Arrived, Capture
from ansible_collections.offheap.profiler.tests.unit.strategies.heap_dumps import (
    DescribedDump,
    DescribedMapping,
    DescribedStack,
)
from ansible_collections.offheap.profiler.tests.unit.strategies.leaky_archives import (
    BASE,
    INTERVAL,
    JIT,
    START,
    image,
    inside,
    libz,
)

#: what stands for 256 MiB, 256 MiB, 100 dumps and 12 maps, by module and name
SMALL_LIMITS = {
    "module_utils.formats.limits.LARGEST_DUMP": 16 << 10,
    "plugin_utils.leaks.scope._MOST_BYTES": 14 << 10,
    "plugin_utils.leaks.scope._MOST_DUMPS": 7,
    "plugin_utils.leaks.scope._FEWEST_DUMPS": 4,
    "plugin_utils.symbols.jit_symbols.MOST_MAPS": 3,
    "plugin_utils.columns.series_reader.MOST_MAPS": 3,
}
_LOST = 0x7D0000000000
_UNKNOWN = 0x7C0000000000
_METHODS = ("byte[] com.shop.Assets.load(int)", "void com.shop.Cart.add(long)", "py::serve:/srv/app.py")


class Caller(Enum):
    """Who calls the function that allocates."""

    LIBRARY = "a function of the same library"
    COMPILED = "compiled code that stays"
    MOVING = "compiled code that moves, other code takes its place"
    LOST = "an image that the archive does not have"
    UNKNOWN = "an image without a build-id"


class Fault(Enum):
    """What is wrong with a capture."""

    DAMAGED = "its dump has changed since it was brought"
    CHANGED = "its dump has changed, and can be read all the same"
    NO_DUMP = "its dump is no heap profile"
    GONE = "its dump is not there"
    HUGE = "its dump is larger than what is read"
    EARLY = "it claims to be from before 1970"
    LATE = "it claims to be from the far future"


@dataclass(frozen=True)
class DescribedProcess:
    """``begins`` and ``step`` are seconds, ``leaked`` sampled objects (of some 512 KiB) more in each dump;
    ``maps`` and ``faults`` are by the dump's number, a map that is False cannot be read. ``born`` times what lives was
    allocated; 0: the dumps do not say."""

    unit: str
    host: str
    begins: int
    dumps: int
    step: int
    leaked: int
    function: str
    caller: Caller
    padding: int
    label: str
    maps: dict[int, bool] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    born: int = 0

    def dump(self, number: int) -> bytes:
        """What jemalloc would write."""
        if self.faults.get(number) is Fault.NO_DUMP:
            return b"heap_v3/%d\n" % number
        leaf, calls = inside(self.function.encode()), self._callers(number)
        counts = {leaf: 6 + self.leaked * number, inside(b"deflate"): 30 + number % 2, inside(b"crc32"): 12}
        stacks = [
            DescribedStack(
                [address, calls[at % len(calls)]],
                (count, 4096 * count, count * self.born, 4096 * count * self.born),
                [],
            )
            for at, (address, count) in enumerate(counts.items())
        ]
        stacks += [
            DescribedStack([inside(b"adler32"), JIT + 0x8000 + 64 * more], (1, 4096, 0, 0), [])
            for more in range(self.padding)
        ]
        mappings = [
            DescribedMapping(JIT, 1 << 16, "rwxp", 0, "", False),
            DescribedMapping(BASE, 1 << 20, "r-xp", 0, str(libz()), False),
            DescribedMapping(_LOST, 1 << 20, "r-xp", 0, "/opt/lost.so", False),
            DescribedMapping(_UNKNOWN, 1 << 20, "r-xp", 0, "/opt/unknown.so", False),
        ]
        huge = 400 if self.faults.get(number) is Fault.HUGE else 0
        mappings += [DescribedMapping(4096 * at, 64, "rw-p", 0, "", False) for at in range(1, huge)]
        return DescribedDump(INTERVAL, stacks=stacks, mappings=mappings).text()

    def _callers(self, number: int) -> list[int]:
        if self.caller is Caller.LIBRARY:
            return [inside(b"compress"), inside(b"uncompress")]
        if self.caller is Caller.LOST:
            return [_LOST + 0x1234, _LOST + 0x2345]
        if self.caller is Caller.UNKNOWN:
            return [_UNKNOWN + 0x1234]
        return [self._method(at, number) + 16 for at in range(2)]

    def _method(self, at: int, number: int) -> int:
        """Where a method's code lies; of MOVING code, one takes the place of the other."""
        moved = number // 4 if self.caller is Caller.MOVING else 0
        return JIT + 64 + 128 * ((at + moved) % len(_METHODS))

    def perf_map(self, number: int) -> bytes:
        lines = [f"{self._method(at, number):x} 40 {name}\n" for at, name in enumerate(_METHODS)]
        return "".join(lines).encode() if self.maps[number] else b"\x1f\x8bno gzip"

    def time(self, number: int) -> float:
        strange = {Fault.EARLY: -5.0, Fault.LATE: 2e11}
        return strange.get(self.faults.get(number, Fault.GONE), START + self.begins + self.step * number)

    def facts(self, number: int, pid: int, content: bytes) -> CaptureFacts:
        build_id = image().build_id
        images = [
            {"path": str(libz()), "build_id": build_id, "size": libz().stat().st_size},
            {"path": "/opt/lost.so", "build_id": "ab" * 20, "size": 1 << 20},
            {"path": "/opt/unknown.so", "build_id": None, "size": None, "reason": "it has none"},
        ]
        found: dict[str, Any] = {
            "format": 1,
            "host": self.host,
            "unit": self.unit,
            "dump": {
                "name": f"jeprof.{pid}.{number}.i{number}.heap",
                "size": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "time": self.time(number),
            },
            "process": {
                "pid": pid,
                "key": f"{pid}-1a2b3c4d",
                "boot_id": None,
                "start_time": None,
                "exe": "/usr/bin/app",
                "cmdline": None,
            },
            "images": images,
            **({"label": self.label} if self.label else {}),
        }
        return CaptureFacts.from_json(found)


@dataclass(frozen=True)
class DescribedArchive:
    """``torn`` is the number of a process whose first capture has lost its facts, which hides all of that host."""

    processes: list[DescribedProcess]
    torn: int | None = None

    def make(self, root: Path) -> Archive:
        archive = Archive.create(root)
        build_id = image().build_id
        assert build_id
        archive.add_image(build_id, libz().name, libz())
        for number, process in enumerate(self.processes):
            captures = _bring(archive, process, 100 + number)
            if number == self.torn:
                (captures[0].path / "capture.json").write_text("{")
        return archive


def _bring(archive: Archive, process: DescribedProcess, pid: int) -> list[Capture]:
    with archive.incoming() as aside:
        arrived = []
        for number in range(process.dumps):
            content = process.dump(number)
            dump, perf_map = aside / f"{number}.heap", aside / f"{number}.map"
            dump.write_bytes(content)
            if number in process.maps:
                perf_map.write_bytes(process.perf_map(number))
            facts = process.facts(number, pid, content)
            arrived.append(Arrived(facts, dump, perf_map if number in process.maps else None))
        captures = [capture for capture, _added in archive.add_captures(arrived, aside)]
    for number, capture in enumerate(captures):
        if process.maps.get(number) is False:
            (capture.path / "perf.map.gz").write_bytes(process.perf_map(number))
        _spoil(process, number, capture)
    return captures


def _spoil(process: DescribedProcess, number: int, capture: Capture) -> None:
    match process.faults.get(number):
        case Fault.DAMAGED:
            capture.dump.write_bytes(b"heap_v2/1\nnothing")
        case Fault.CHANGED:
            capture.dump.write_bytes(process.dump(number).replace(b": 4096 ", b": 8192 "))
        case Fault.GONE:
            capture.dump.unlink()


def processes() -> st.SearchStrategy[DescribedProcess]:
    numbers = st.integers(0, 9)
    return st.builds(
        DescribedProcess,
        unit=st.sampled_from(["frontend.service", "search@1.service"]),
        host=st.sampled_from(["app1", "app2"]),
        begins=st.sampled_from([0, 900, 7200]),
        dumps=st.integers(1, 10),
        step=st.sampled_from([5, 300, 3600]),
        leaked=st.sampled_from([0, 1, 6, 20]),
        function=st.sampled_from(["inflate", "deflateInit_"]),
        caller=st.sampled_from(Caller),
        padding=st.sampled_from([0, 0, 40]),
        label=st.sampled_from(["", "1.0", "2.0"]),
        maps=st.dictionaries(numbers, st.sampled_from([True, True, True, False]), max_size=4),
        faults=st.dictionaries(numbers, st.sampled_from(Fault), max_size=3),
    )


def archives() -> st.SearchStrategy[DescribedArchive]:
    return st.lists(processes(), min_size=1, max_size=3).flatmap(
        lambda found: st.builds(
            DescribedArchive, st.just(found), st.sampled_from([None, None, None, None, len(found) - 1])
        )
    )
