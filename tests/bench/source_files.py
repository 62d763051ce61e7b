# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Large profiles of other tools, as those write them.

source_files.py NAME FILE MEGABYTES     writes one; NAME is one of FILES
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto

_FUNCTIONS, _CALLERS, _DEPTH = 20_000, 4, 24
_BASE = 0x5600_0000_0000


class Walks:
    """Stacks of about 24 frames, leaf first, as walks through a call graph of 20,000 functions."""

    def __init__(self) -> None:
        self._chosen = random.Random(16)
        self._callers = [self._chosen.choices(range(_FUNCTIONS), k=_CALLERS) for _function in range(_FUNCTIONS)]

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            function = self._chosen.randrange(_FUNCTIONS)
            stack = [function]
            for _frame in range(self._chosen.randint(_DEPTH - 8, _DEPTH + 8)):
                function = self._chosen.choice(self._callers[function])
                stack.append(function)
            yield stack


def _name(function: int) -> str:
    return f"company/service/component.(*Handler{function % 97}).process{function}"


def _pprof() -> Iterator[bytes]:
    texts = ["", "inuse_objects", "count", "inuse_space", "bytes", "space", "/usr/bin/service"]
    head = profile_proto.profile_class()(period=524288)
    for kind, unit in ((1, 2), (3, 4)):
        head.sample_type.add(type=kind, unit=unit)
    head.period_type.type, head.period_type.unit = 5, 4
    head.mapping.add(id=1, memory_start=_BASE, memory_limit=_BASE + (1 << 26), filename=6, has_functions=True)
    yield head.SerializeToString()
    tail = profile_proto.profile_class()()
    for function in range(_FUNCTIONS):
        tail.function.add(id=function + 1, name=len(texts) + function)
        location = tail.location.add(id=function + 1, mapping_id=1, address=_BASE + 64 * function)
        location.line.add(function_id=function + 1, line=function % 997)
    tail.string_table.extend([*texts, *map(_name, range(_FUNCTIONS))])
    yield tail.SerializeToString()
    for number, stack in enumerate(Walks()):
        piece = profile_proto.profile_class()()
        piece.sample.add(
            location_id=[function + 1 for function in stack], value=[1 + number % 9, 4096 + number % 65536]
        )
        yield piece.SerializeToString()


def _perf() -> Iterator[bytes]:
    for number, stack in enumerate(Walks()):
        lines = [f"service 4711/4712 {number / 1000:.6f}:          1 page-faults:u: "]
        lines += [f"\t    {_BASE + 64 * at:x} {_name(at)}+0x1f (/usr/bin/service)" for at in stack]
        yield "\n".join([*lines, "\n"]).encode()


def _collapsed() -> Iterator[bytes]:
    for number, stack in enumerate(Walks()):
        yield f"{';'.join(map(_name, reversed(stack)))} {4096 + number % 65536}\n".encode()


def _gperftools() -> Iterator[bytes]:
    yield b"heap profile: 1: 4096 [ 1: 4096] @ heap_v2/524288\n"
    for number, stack in enumerate(Walks()):
        places = " ".join(f"{_BASE + 64 * at:#018x}" for at in stack)
        size = 4096 + number % 65536
        yield f"     1: {size:8} [     1: {size:8}] @ {places}\n".encode()


def _memray() -> Iterator[bytes]:
    yield b"allocator,num_allocations,size,tid,thread_name,stack_trace\r\n"
    for number, stack in enumerate(Walks()):
        places = "|".join(f"{_name(at)};/usr/lib/service/component{at % 97}.py;{at % 997}" for at in stack)
        yield f"MALLOC,{1 + number % 9},{4096 + number % 65536},1,0x1,{places}\r\n".encode()


FILES: dict[str, Callable[[], Iterator[bytes]]] = {
    "pprof": _pprof,
    "perf": _perf,
    "collapsed": _collapsed,
    "gperftools": _gperftools,
    "memray": _memray,
}


# What a file has to end with, wherever it is cut to its size.
_ENDS = {"gperftools": b"\nMAPPED_LIBRARIES:\n"}


def main() -> None:
    name, path, megabytes = sys.argv[1:]
    left = int(megabytes) << 20
    with Path(path).open("wb") as stream:
        for piece in FILES[name]():
            left -= stream.write(piece)
            if left <= 0:
                break
        stream.write(_ENDS.get(name, b""))


if __name__ == "__main__":
    main()
