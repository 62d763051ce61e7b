# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a controller reads of what hosts send, for the fuzzer (parser.py)."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow
import zstandard

from ansible_collections.offheap.profiler.plugins.module_utils.formats import (
    capture_facts,
    holders,
    maps,
    sidecar,
    wire,
)
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import plan, unpack_tar
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import located, named
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, heap_v2, lives_book
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.detect import Format
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import perf_map
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage import look
from ansible_collections.offheap.profiler.tests.fuzz import mutators
from ansible_collections.offheap.profiler.tests.fuzz.one_input import (
    GPERFTOOLS,
    JEMALLOC,
    RECORDING,
    Target,
    bounded,
    json_text,
    replaced,
)
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.formats.test_holders_format import told
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.formats.test_sidecar import WHOLE
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.fetch.test_unpack_tar import (
    ANNOUNCED,
    GOOD,
    tar,
)
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
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.symbols.test_perf_map import CPYTHON, HOTSPOT
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.triage.test_rules import sample
from ansible_collections.offheap.profiler.tests.unit.strategies import offers

LIMIT = 1 << 20
# Bytes that a file is repeated to, so that what takes more time than it is long is seen.
MANY = 1 << 14
_TOLD = Told(Measure.LIVE, "bytes", 1)
_COLLAPSED = b"main;serve;inflate 65536\nmain 4096\n"
_MAPS = b"""\
00400000-00402000 r-xp 00001000 fe:00 11                                 /srv/my app (deleted)
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
7ffc00000000-7ffd00000000 rw-p 00000000 00:00 0                          [stack]
"""


def read_dump(data: bytes) -> None:
    """As a dump of every source."""
    contents: list[bytes] = []
    _unpack(data, contents)
    for content in contents:
        for found in detect.FORMATS.values():
            _read_as(found.parse, content)


def read_file(form: Format, data: bytes) -> None:
    """As a file of one source."""

    def parse(content: bytes, name: str, told: Told) -> Records:
        form.recognizes(content)
        return form.parse(content, name, told)

    _read_as(parse, data)


def read_packed(data: bytes) -> None:
    _unpack(data, [])


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
        raise


@bounded
def _read_as(parse: Callable[[bytes, str, Told], Records], content: bytes) -> None:
    try:
        _look_at(parse(content, "fuzz", _TOLD))
    except heap_v2.HeapFormatError as error:
        assert error.line >= 1 and error.expected and str(error).isprintable()
        raise
    except ControllerError as error:
        assert str(error).isprintable()
        raise


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
    listing = capture_samples.listing(b"dump", b"another")
    said = replaced({"listing": listing, "facts": _FACTS, "agent": _AGENT, "look": _LOOK}, data)
    for read in (
        lambda: plan.read_listing(said.get("listing"), "app1", LIMIT, LIMIT),
        lambda: capture_facts.CaptureFacts.from_json(capture_facts.CaptureFacts.from_json(said.get("facts")).to_json()),
        lambda: sidecar.AgentFacts.from_json(sidecar.AgentFacts.from_json(said.get("agent")).to_json()),
        lambda: look.parse(said.get("look")),
    ):
        try:
            read()
        except (OffheapError, ControllerError) as error:
            assert str(error)


@bounded
def read_wire(data: bytes) -> None:
    """Part by part, as a session does."""
    stream = io.BytesIO(data)
    while (part := wire.read(stream.read, LIMIT)) is not None:
        assert part.message is None or not part.data


@bounded
def read_lives(data: bytes) -> None:
    book = lives_book.parse(data, "fuzz")
    assert sum(book.births) - sum(book.deaths) == len(book.stack) == len(book.born) == len(book.size)
    assert (book.ends[-1] if book.ends else 0) == len(book.addresses)


@bounded
def read_holders(data: bytes) -> None:
    found = holders.parse(json_text(data, told()))
    assert all(node.parent is None or node.parent < number for number, node in enumerate(found.nodes))


@bounded
def read_perf_map(data: bytes) -> None:
    found = perf_map.parse(data)
    for match in (b"0", b"10", b"7f0f5f340b85", b"ffffffffffffffff"):
        found.frames(int(match, 16))


@bounded
def read_transfer(data: bytes) -> None:
    """Packed in both ways, and as it is; whatever it is, no more is written than was announced."""
    for content in (gzip.compress(data, 1), _PACKER.compress(data), data):
        os.ftruncate(_PACKED, 0)
        os.pwrite(_PACKED, content, 0)
        written: dict[str, io.BytesIO] = {}

        @contextmanager
        def opened(name: str, written: dict[str, io.BytesIO] = written) -> Iterator[io.BytesIO]:
            written[name] = io.BytesIO()
            yield written[name]

        try:
            unpack_tar.unpack(Path(f"/proc/self/fd/{_PACKED}"), ANNOUNCED, opened)
        except unpack_tar.TransferError as error:
            assert str(error)
        assert all(len(found.getvalue()) <= ANNOUNCED[name] for name, found in written.items())


_PACKED, _PACKER = os.memfd_create("packed"), zstandard.ZstdCompressor(1)
_FACTS = {
    **capture_samples.written(),
    "format": capture_facts.FORMAT,
    "source": "jemalloc",
    "measure": "live",
    "sampling": {"scheme": "poisson", "interval": 1 << 19},
}
_LOOK = sample(
    1700000000.0, free=(1, 2), jvm={"nmt": {"categories": {"Other": 1 << 20}}, "flags": {"MaxHeapSize": "1073741824"}}
)
_AGENT = {key: WHOLE[key] for key in sidecar.AgentFacts.__annotations__ if key in WHOLE} | {"version": WHOLE["agent"]}


def _dumps() -> dict[str, bytes]:
    seeds = {
        "jemalloc": JEMALLOC,
        "async-profiler": RECORDING,
        "gperftools": GPERFTOOLS,
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


def _packed() -> dict[str, bytes]:
    packers = {"gzip": gzip.compress, "zstd": _PACKER.compress, "lz4": _lz4, "xz": lzma.compress, "bzip2": bz2.compress}
    return {name: pack(JEMALLOC) for name, pack in packers.items()}


def _lz4(data: bytes) -> bytes:
    packed = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(packed, "lz4") as stream:
        stream.write(data)
    return bytes(packed.getvalue())


def _of(source: str) -> dict[str, bytes]:
    return {source: _dumps()[source]} | ({"xml": XML} if source == "memcheck" else {})


def _messages() -> dict[str, bytes]:
    sent = io.BytesIO()
    wire.write_message(sent.write, {"captures": [{"unit": "frontend.service"}], "free": 1})
    wire.write_alive(sent.write)
    wire.write_data(sent.write, b"block")
    return {"messages": sent.getvalue()}


_MUTATORS = {"pprof": mutators.of_protobuf, "otlp": mutators.of_protobuf}
#: readers of files that people have, whatever these are
FILES = {
    **{
        name: Target(partial(read_file, form), partial(_of, name), _MUTATORS.get(name))
        for name, form in detect.FORMATS.items()
    },
    "packed": Target(read_packed, _packed),
    "unknown": Target(read_unknown, _unknowns),
}
TARGETS = {
    **FILES,
    "dump": Target(read_dump, _dumps),
    "maps": Target(read_maps, lambda: {"maps": _MAPS}),
    "elf": Target(read_elf, lambda: {"small": Path("/bin/true").read_bytes()[:LIMIT]}),
    "facts": Target(read_facts, lambda: {"facts": json.dumps(_FACTS).encode()}),
    "wire": Target(read_wire, _messages),
    "lives": Target(read_lives, lambda: {"small": SMALL}),
    "holders": Target(read_holders, lambda: {"told": json.dumps(told()).encode()}),
    "perf-map": Target(read_perf_map, lambda: {"hotspot": HOTSPOT, "cpython": CPYTHON}),
    "transfer": Target(read_transfer, lambda: {"good": tar(*GOOD)}),
}
