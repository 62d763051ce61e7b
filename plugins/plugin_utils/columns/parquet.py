# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The samples of one capture as a Parquet file: what the numbers of the dump say, and where in which image.

No names of functions: those need images, which may be brought later, and the file does not change then. A place is
known by build-id and file offset, so the same stack has the same number in every process on every host.

One row per stack of the dump. docs/archive_format.md describes the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...module_utils.formats.capture_facts import CaptureFacts
from ..base import libraries
from ..base.errors import ControllerError
from ..model.samples import BYTES, OBJECTS, unbiased
from ..readers import heap_v2
from ..readers.heap_v2 import Dump

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Numbers = NDArray[np.float64]
else:
    np = libraries.optional("numpy")

pa = libraries.optional("pyarrow")
pq = libraries.optional("pyarrow.parquet")

FORMAT = 2
NAME = "samples.parquet"
#: the module of code that a runtime has compiled, and of what lies nowhere
JIT, UNMAPPED = "[jit]", ""
_FORMAT_KEY = b"offheap.samples"
_VALUES = ("objects", "bytes", "accum_objects", "accum_bytes")
# The stacks whose frames are in memory at once to be hashed.
_AT_ONCE = 1 << 12
# Seconds since the epoch that a timestamp in microseconds can hold.
_LATEST = 1e11


class SamplesError(ControllerError):
    """A file of samples cannot be read. The message says which and why."""


class Place(NamedTuple):
    """A place in an image: C(module) is the mapped path, C(offset) the position in the file of the call's last byte.

    For code that no file holds, C(module) is JIT or UNMAPPED and C(offset) the address.
    """

    module: str
    build_id: str
    offset: int


def write(path: Path, dump: Dump, facts: CaptureFacts, sequence: int) -> None:
    """Write the samples of a dump that has these (checked) facts. Raises OSError."""
    places = _places(dump, facts.build_ids)
    bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.array(dump.stack_ends, dtype=np.int64)))
    addresses: Integers = np.array(dump.stack_addresses, dtype=np.int64)
    count = len(dump.stack_ends)
    values = unbiased(dump.counts, dump.sample_interval)
    columns: dict[str, Any] = {
        "unit": _constant(facts.unit, count),
        "host": _constant(facts.host, count),
        "process": _constant(facts.process.key, count),
        "label": _constant(facts.label, count),
        "sequence": pa.array(np.full(count, sequence, dtype=np.int64)),
        "time": pa.array([_moment(facts.dump.time)] * count, pa.timestamp("us")),
        "sample_interval": pa.array(np.full(count, min(dump.sample_interval, (1 << 63) - 1), dtype=np.int64)),
        "stack": pa.array(_stack_numbers(places, addresses, bounds)),
        **{name: pa.array(row) for name, row in zip(_VALUES, values, strict=True)},
        "frames": _list_of(bounds, _frames(places, addresses)),
        "threads": _threads(dump, count),
    }
    table = pa.table(columns, metadata={_FORMAT_KEY: b"%d" % FORMAT})
    pq.write_table(
        table, path, compression="zstd", use_dictionary=True, write_statistics=["time", "stack"], store_schema=True
    )


def is_current(path: Path) -> bool:
    """Whether there is a file of samples that is as C(write) makes it today."""
    try:
        return (pq.read_metadata(path).metadata or {}).get(_FORMAT_KEY) == b"%d" % FORMAT
    except (OSError, pa.ArrowException):
        return False


def read_values(path: Path) -> tuple[Integers, Numbers, Numbers]:
    """(stack, live objects, live bytes) by row. Raises SamplesError."""
    table = _read(path, ["stack", "objects", "bytes"])
    stack, objects, size = (table.column(name).to_numpy() for name in ("stack", "objects", "bytes"))
    return stack, objects, size


def read_interval(path: Path) -> int:
    """The sample interval in bytes, 0 of a dump without stacks. Raises SamplesError."""
    values = _read(path, ["sample_interval"]).column("sample_interval")
    return values[0].as_py() if len(values) else 0


def read_stacks(path: Path) -> tuple[Integers, list[Place], Integers, Integers]:
    """(stack by row, distinct places, for each frame of all rows the position of its place, bounds of the rows).

    Row ``i`` has the frames ``bounds[i]:bounds[i + 1]``, leaf first. Raises SamplesError.
    """
    table = _read(path, ["stack", "frames"]).combine_chunks()
    frames = table.column("frames").combine_chunks()
    if isinstance(frames, pa.ChunkedArray):
        frames = frames.chunk(0) if frames.num_chunks else pa.array([], frames.type)
    flat = frames.flatten()
    bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(frames.value_lengths().to_numpy(), dtype=np.int64)))
    modules, module = _encoded(flat.field("module"))
    build_ids, build_id = _encoded(flat.field("build_id"))
    offset = flat.field("offset").to_numpy(zero_copy_only=False)
    offsets, number = np.unique(offset, return_inverse=True)
    image = module * max(len(build_ids), 1) + build_id
    _keys, first, position = np.unique(image * max(len(offsets), 1) + number, return_index=True, return_inverse=True)
    places = [Place(modules[module[at]] or "", build_ids[build_id[at]] or "", int(offset[at])) for at in first.tolist()]
    return table.column("stack").to_numpy(), places, position, bounds


def _read(path: Path, columns: Sequence[str]) -> Any:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns=list(columns), use_threads=False)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise SamplesError(f"{path}: {error}") from error


def _encoded(column: Any) -> tuple[list[str | None], Integers]:
    """(distinct texts, for each row the position of its own)"""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode("encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


class _Places(NamedTuple):
    """Where each of the dump's addresses lies: C(images) has the position in C(names), of (module, build-id)."""

    names: list[tuple[str, str]]
    images: Integers
    offsets: NDArray[np.uint64]


def _places(dump: Dump, build_ids: Mapping[str, str]) -> _Places:
    """All addresses are those of returns: the call ends one byte before."""
    mappings = sorted(dump.mappings, key=lambda mapping: mapping.start)
    names = [*(_name(mapping, build_ids) for mapping in mappings), (UNMAPPED, "")]
    starts = np.array([mapping.start for mapping in mappings], dtype=np.uint64)
    # The last one is for what lies in no mapping; before the first mapping, the position -1 leads there too.
    ends = np.array([*(mapping.end for mapping in mappings), 0], dtype=np.uint64)
    shifts = np.array([*map(_shift, mappings), 0], dtype=np.uint64)
    addresses = np.array(dump.addresses, dtype=np.uint64)
    calls = addresses - (addresses > 0)
    position = np.searchsorted(starts, calls, side="right") - 1
    position[calls >= ends[position]] = len(mappings)
    used, images = np.unique(position, return_inverse=True)
    return _Places([names[at] for at in used.tolist()], images, calls + shifts[position])


def _shift(mapping: heap_v2.Mapping) -> int:
    """From an address to the position in the file, modulo 2^64; code of no file keeps its address."""
    return (mapping.offset - mapping.start) % (1 << 64) if mapping.path.startswith("/") else 0


def _name(mapping: heap_v2.Mapping, build_ids: Mapping[str, str]) -> tuple[str, str]:
    """(module, build-id)"""
    if not mapping.path.startswith("/"):
        named = mapping.path if mapping.path.startswith("[v") else ""
        return named or (JIT if mapping.executable else UNMAPPED), ""
    path = mapping.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return path, build_ids.get(mapping.path + (" (deleted)" if mapping.deleted else ""), "")


def _stack_numbers(places: _Places, addresses: Integers, bounds: Integers) -> Integers:
    """A number for each stack that the same places always give.

    A host is not trusted, and must not find a stack with the number of another one: so these are 64 bits of a
    cryptographic hash, of each frame's image and offset.
    """
    images = [blake2b((build_id or module).encode(), digest_size=8).digest() for module, build_id in places.names]
    known = np.empty(len(places.offsets), dtype=[("image", "<u8"), ("offset", "<u8")])
    known["image"] = np.frombuffer(b"".join(images), dtype="<u8")[places.images]
    known["offset"] = places.offsets
    hashed = []
    for first in range(0, len(bounds) - 1, _AT_ONCE):
        some = bounds[first : first + _AT_ONCE + 1]
        data = known[addresses[some[0] : some[-1]]].tobytes()
        limits = ((some - some[0]) * known.itemsize).tolist()
        hashed += [blake2b(data[start:end], digest_size=8).digest() for start, end in pairwise(limits)]
    return np.frombuffer(b"".join(hashed), dtype="<i8")


def _frames(places: _Places, addresses: Integers) -> Any:
    images = places.images.astype(np.int32)[addresses]
    modules, build_ids = ([name[part] for name in places.names] for part in (0, 1))
    offsets = (places.offsets & np.uint64((1 << 63) - 1)).astype(np.int64)
    return pa.StructArray.from_arrays(
        [_chosen(modules, images), _chosen(build_ids, images), pa.array(offsets[addresses])],
        names=["module", "build_id", "offset"],
    )


def _chosen(texts: Sequence[str | None], positions: NDArray[np.integer]) -> Any:
    """The text at each of the positions, each text kept once."""
    known = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    none = -1
    numbers = np.array([none if text is None else known[text] for text in texts], dtype=np.int32)[positions]
    return pa.DictionaryArray.from_arrays(pa.array(numbers, mask=numbers == none), pa.array(list(known), pa.string()))


def _threads(dump: Dump, count: int) -> Any:
    """For each stack, what each thread holds; a thread is jemalloc's own number of it."""
    names = {thread.uid: thread.name for thread in dump.threads}
    lengths = np.bincount(np.asarray(dump.thread_stack), minlength=count)
    bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))
    number = np.asarray(dump.thread_uid)
    threads, position = np.unique(number, return_inverse=True)
    values = unbiased(dump.thread_counts, dump.sample_interval)
    columns = pa.StructArray.from_arrays(
        [
            pa.array(number),
            _chosen([names.get(uid) or None for uid in threads.tolist()], position),
            pa.array(values[OBJECTS]),
            pa.array(values[BYTES]),
        ],
        names=["thread", "name", "objects", "bytes"],
    )
    return _list_of(bounds, columns)


def _list_of(bounds: Integers, values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values)


def _constant(text: str | None, count: int) -> Any:
    indices = pa.array(np.zeros(count, dtype=np.int32))
    if text is None:
        return pa.nulls(count, pa.dictionary(pa.int32(), pa.string()))
    return pa.DictionaryArray.from_arrays(indices, pa.array([text], pa.string()))


def _moment(seconds: float) -> int | None:
    return round(seconds * 1e6) if 0 <= seconds < _LATEST else None
