# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One input of a fuzzer: what reading it may cost, what its bytes make of a sound JSON text, and small sound files."""

from __future__ import annotations

import copy
import json
import mmap
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import atheris

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.tests.unit.strategies.small_recordings import recording

#: seconds of CPU time of one reader for one input, and KiB that it may add to the memory of the process
LONGEST, LARGEST = 1.0, 256 << 10
JEMALLOC = b"""\
heap_v2/524288
  t*: 3: 300 [4: 400]
  t0: 2: 200 [2: 200] main
@ 0x401011 0x401021
  t*: 3: 300 [4: 400]
  t0: 2: 200 [2: 200]
@
  t*: 0: 0 [0: 0]

MAPPED_LIBRARIES:
00400000-00402000 r-xp 00001000 fe:00 11 /srv/my app (deleted)
7ffc0000-7ffd0000 rw-p 00000000 00:00 0                                  [stack]
"""
GPERFTOOLS = b"""\
heap profile: 2: 200 [ 3: 300] @ heapprofile
 2: 200 [ 3: 300] @ 0x401011 0x401021

MAPPED_LIBRARIES:
00400000-00402000 r-xp 00001000 fe:00 11 /srv/app
"""
RECORDING = recording([(1, 10, 40, 1), (2, 20, 5000, 2)], [(3, 10)])
_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 64,
    10**400,
    1e308,
    float("nan"),
    "",
    "../..",
    "\udcff",
    "\x1b[2J",
    "x" * 5000,
    [],
    [[]],
    {},
    {"": {}},
]


#: in the environment: a file for what came of the inputs, which the fuzzer ends the process without telling
TALLY = "OFFHEAP_FUZZ_TALLY"


def _tally() -> memoryview[float]:
    path = os.environ.get(TALLY)
    file = os.open(path, os.O_RDWR) if path else os.memfd_create("tally")
    os.ftruncate(file, 24)
    return memoryview(mmap.mmap(file, 24)).cast("d")


#: how much was read, how much refused, and the most seconds of CPU time that one took
CAME = _tally()


@dataclass(frozen=True)
class Target:
    """What reads, and inputs to begin with. ``mutate`` (input, most bytes, seed) changes one for the next."""

    read: Callable[[bytes], None]
    seeds: Callable[[], dict[str, bytes]]
    mutate: Callable[[bytes, int, int], bytes] | None = None


def bounded(read: Callable[..., Any]) -> Callable[..., None]:
    """Only our own errors may come out, not after too long, and not with too much memory."""

    def one(*given: Any) -> None:
        began, held = time.process_time(), _most_memory()
        refused = False
        try:
            read(*given)
        except OffheapError as error:
            assert str(error)
            refused = True
        took = time.process_time() - began
        CAME[refused] += 1
        CAME[2] = max(CAME[2], took)
        assert took < LONGEST, f"{read.__name__} took {took:.1f} s"
        added = _most_memory() - held
        assert added < LARGEST, f"{read.__name__} took {added} KiB"

    return one


def _most_memory() -> int:
    """What the process has had resident at most so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def json_text(data: bytes, sound: Any) -> bytes:
    """The bytes themselves if they could be JSON, else a sound value with what they replace in it."""
    return data if data[:1] == b"{" else json.dumps(replaced(sound, data)).encode()


def replaced(sound: Any, data: bytes) -> Any:
    """A copy of a mapping in which some is replaced, taken away or put elsewhere, as the bytes have it."""
    chance = atheris.FuzzedDataProvider(data)
    value = copy.deepcopy(sound)
    for _change in range(chance.ConsumeIntInRange(0, 4)):
        _replace(value, chance)
    return value


def _replace(value: Any, chance: atheris.FuzzedDataProvider) -> None:
    """A value somewhere within a mapping or a list."""
    while True:
        keys = [*value] if isinstance(value, dict) else [*range(len(value))]
        if not keys:
            return
        key = keys[chance.ConsumeIntInRange(0, len(keys) - 1)]
        if not isinstance(value[key], (dict, list)) or chance.ConsumeBool():
            break
        value = value[key]
    ways: list[Callable[[], Any]] = [
        lambda: copy.deepcopy(_ODD[chance.ConsumeIntInRange(0, len(_ODD) - 1)]),  # else it could come to hold itself
        lambda: chance.ConsumeUnicode(chance.ConsumeIntInRange(0, 40)),
        lambda: chance.ConsumeInt(9),
        lambda: chance.ConsumeFloat(),
        lambda: [value[key]],
    ]
    way = chance.ConsumeIntInRange(0, len(ways))
    if way < len(ways):
        value[key] = ways[way]()
    else:
        del value[key]
