# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Coverage-guided fuzzing of what reads the bytes that hosts send.

    parser.py TARGET [CORPUS ...] [-runs=N] [-max_total_time=SECONDS] [other options of libFuzzer]

TARGET is one of:

- ``dump``: unpacking, and the readers of all formats: parsing, locating, unbiasing
- ``unknown``: a file that somebody names, whose source is told by its content alone: as it is, and many times over
- ``maps``: the memory map of a process; ``elf``: an image and its symbols; ``wire``: messages of a session
- ``facts``: what a host says of a capture, with some of it replaced
- ``recording``: what a JVM that is traced has recorded, on the host
- ``lives``: the book of lives that the agent has written beside a dump

Whatever the bytes are, there is a result or an error of ours. An input that takes one reader a second of CPU time, or
more memory than 256 MiB, ends the run. Python code is measured by atheris, which knows which branches an input took.
"""

from __future__ import annotations

import copy
import io
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

import atheris

_OURS = "ansible_collections.offheap.profiler.plugins"
with atheris.instrument_imports(
    include=[f"{_OURS}.plugin_utils", f"{_OURS}.module_utils.formats", f"{_OURS}.module_utils.tracing.thinned"]
):
    from ansible_collections.offheap.profiler.plugins.module_utils.formats import capture_facts, maps, sidecar, wire
    from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
    from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thinned import Thinned
    from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
    from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
    from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import plan
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import located, named
    from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
    from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, heap_v2, jfr_chunk, lives_book
    from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage

from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.formats.test_sidecar import WHOLE
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_lives_book import SMALL
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_otlp_profile import (
    made as otlp_profiles,
)
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_tracer_texts import TEXTS
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_valgrind_tools import (
    DHAT,
    MEMCHECK,
    XML,
)
from ansible_collections.offheap.profiler.tests.unit.strategies import offers
from ansible_collections.offheap.profiler.tests.unit.strategies.small_recordings import recording

LIMIT = 1 << 20
#: seconds of CPU time of one reader for one input, and KiB that it may add to the memory of the process
LONGEST, LARGEST = 1.0, 256 << 10
# Bytes that a file is repeated to, so that what takes more time than it is long is seen.
MANY = 1 << 14
_TOLD = Told(Measure.LIVE, "bytes", 1)
_SEED = b"""\
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
_GPERFTOOLS = b"""\
heap profile: 2: 200 [ 3: 300] @ heapprofile
 2: 200 [ 3: 300] @ 0x401011 0x401021

MAPPED_LIBRARIES:
00400000-00402000 r-xp 00001000 fe:00 11 /srv/app
"""
_COLLAPSED = b"main;serve;inflate 65536\nmain 4096\n"
_RECORDING = recording([(1, 10, 40, 1), (2, 20, 5000, 2)], [(3, 10)])


_MAPS = b"""\
00400000-00402000 r-xp 00001000 fe:00 11                                 /srv/my app (deleted)
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7ffc00000000-7ffd00000000 rw-p 00000000 00:00 0                          [stack]
"""
_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 64,
    1e308,
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


def bounded(read: Callable[..., None]) -> Callable[..., None]:
    """Only our own errors may come out, not after too long, and not with too much memory."""

    def one(*given: Any) -> None:
        began, held = time.process_time(), _most_memory()
        try:
            read(*given)
        except OffheapError as error:
            assert str(error)
        took = time.process_time() - began
        assert took < LONGEST, f"{read.__name__} took {took:.1f} s"
        added = _most_memory() - held
        assert added < LARGEST, f"{read.__name__} took {added} KiB"

    return one


def _most_memory() -> int:
    """What the process has had resident at most so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read_dump(data: bytes) -> None:
    """As a dump of every source."""
    contents: list[bytes] = []
    _unpack(data, contents)
    for content in contents:
        for found in detect.FORMATS.values():
            _read_as(found.parse, content)


def read_unknown(data: bytes) -> None:
    """As a file that could be anything."""
    for content in (data, data * (MANY // max(len(data), 1))):
        _read_as(detect.parse, content)


@bounded
def _unpack(data: bytes, contents: list[bytes]) -> None:
    """Adds what it finds."""
    try:
        contents.append(unpack.unpack(data, "fuzz", LIMIT))
    except unpack.UnpackError as error:
        assert str(error).isprintable()


@bounded
def _read_as(parse: Callable[[bytes, str, Told], Records], content: bytes) -> None:
    try:
        _look_at(parse(content, "fuzz", _TOLD))
    except heap_v2.HeapFormatError as error:
        assert error.line >= 1 and error.expected and str(error).isprintable()
    except ControllerError as error:
        assert str(error).isprintable()


def _look_at(dump: Records) -> None:
    assert all(0 <= index < len(dump.addresses) + len(dump.names) for index in dump.stack_places)
    found = named(located(dump, {}), lambda locations: [(Frame(f"{one.address:x}", one.path),) for one in locations])
    assert len(found) == len(dump.stack_ends)
    assert [location.address for location in found.locations[: len(dump.addresses)]] == list(dump.addresses)


@bounded
def read_maps(data: bytes) -> None:
    found = maps.parse(data)
    assert all(one.start < one.end for one in found)


@bounded
def read_elf(data: bytes) -> None:
    image = ElfImage(Path("fuzz"), data)
    for start, end, _address, _is_code in image.segments:
        image.virtual_address((start + end) // 2)
    symbols = image.symbols()
    for start, end in symbols.ranges()[:100]:
        symbols.lookup((start + end) // 2)


@bounded
def read_facts(data: bytes) -> None:
    """Of what a host that is sound would say, some is replaced, taken away or put elsewhere, as the bytes have it."""
    chance = atheris.FuzzedDataProvider(data)
    said = {"listing": capture_samples.listing(b"dump", b"another"), "facts": _FACTS, "agent": _AGENT}
    said = copy.deepcopy(said)
    for _change in range(chance.ConsumeIntInRange(0, 4)):
        _replace(said, chance)
    for read in (
        lambda: plan.read_listing(said["listing"], "app1", LIMIT, LIMIT),
        lambda: capture_facts.CaptureFacts.from_json(capture_facts.CaptureFacts.from_json(said["facts"]).to_json()),
        lambda: sidecar.AgentFacts.from_json(sidecar.AgentFacts.from_json(said["agent"]).to_json()),
    ):
        try:
            read()
        except OffheapError as error:
            assert str(error)


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
    value[key] = ways[chance.ConsumeIntInRange(0, len(ways) - 1)]()


@bounded
def read_wire(data: bytes) -> None:
    """Part by part, as a session does."""
    stream = io.BytesIO(data)
    while (part := wire.read(stream.read, LIMIT)) is not None:
        assert part.message is None or not part.data


@bounded
def read_recording(data: bytes) -> None:
    with Thinned() as kept:
        kept.add(jfr_chunk.split(data + data))
        assert kept.size <= 2 * len(data)


@bounded
def read_lives(data: bytes) -> None:
    book = lives_book.parse(data, "fuzz")
    assert sum(book.births) - sum(book.deaths) == len(book.stack) == len(book.born) == len(book.size)
    assert (book.ends[-1] if book.ends else 0) == len(book.addresses)


_FACTS = {
    **capture_samples.written(),
    "format": capture_facts.FORMAT,
    "source": "jemalloc",
    "measure": "live",
    "sampling": {"scheme": "poisson", "interval": 1 << 19},
}
_AGENT = {key: WHOLE[key] for key in sidecar.AgentFacts.__annotations__ if key in WHOLE} | {"version": WHOLE["agent"]}


@dataclass(frozen=True)
class Target:
    """What reads, and inputs to begin with."""

    read: Callable[[bytes], None]
    seeds: Callable[[], dict[str, bytes]]


def _dumps() -> dict[str, bytes]:
    seeds = {
        "jemalloc": _SEED,
        "async-profiler": _RECORDING,
        "gperftools": _GPERFTOOLS,
        "collapsed": _COLLAPSED,
        **TEXTS,
        "dhat": DHAT,
        "memcheck": MEMCHECK,
        "otlp": otlp_profiles(),
        "pprof": offers.pprof(4096),
    }
    assert {*seeds} == {*detect.FORMATS}
    return seeds


def _unknowns() -> dict[str, bytes]:
    others = {"json": b'{"nodes": [{"id": 1}]}', "xml": XML, "page": b"<!DOCTYPE html><html>", "blank": b" \n"}
    texts = {"heaptrack": b"v 10500 3\nX /srv/app\n", "callgrind": b"# callgrind format\nevents: Hits\n"}
    return {**_dumps(), **others, **texts}


def _messages() -> dict[str, bytes]:
    sent = io.BytesIO()
    wire.write_message(sent.write, {"captures": [{"unit": "frontend.service"}], "free": 1})
    wire.write_alive(sent.write)
    wire.write_data(sent.write, b"block")
    return {"messages": sent.getvalue()}


TARGETS = {
    "dump": Target(read_dump, _dumps),
    "unknown": Target(read_unknown, _unknowns),
    "maps": Target(read_maps, lambda: {"maps": _MAPS}),
    "elf": Target(read_elf, lambda: {"small": Path("/bin/true").read_bytes()[:LIMIT]}),
    "facts": Target(read_facts, lambda: {"facts": json.dumps(_FACTS).encode()}),
    "wire": Target(read_wire, _messages),
    "recording": Target(read_recording, lambda: {"recording": _RECORDING}),
    "lives": Target(read_lives, lambda: {"small": SMALL}),
}


def main() -> None:
    target = TARGETS[sys.argv[1]]
    corpora = [Path(name) for name in sys.argv[2:] if not name.startswith("-")]
    for corpus in corpora[:1]:
        corpus.mkdir(parents=True, exist_ok=True)
        for name, seed in target.seeds().items():
            (corpus / name).write_bytes(seed)
    limits = ["-timeout=30", "-rss_limit_mb=1024", "-max_len=65536"]
    dictionary = Path(__file__).with_name("heap_v2.dict")
    atheris.Setup([sys.argv[0], *limits, f"-dict={dictionary}", *sys.argv[2:]], target.read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
