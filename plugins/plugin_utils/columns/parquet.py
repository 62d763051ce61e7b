# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The samples of one capture as a Parquet file: the dump's numbers, and the image and offset of each frame.

It has no function names of its own: those need images, which may arrive later, when the file must not change. A place
is identified by image and file offset, so the same stack has the same number in every process on every host. Only
sources that name their code themselves have names here, and in one more column.

One row per stack of the dump. docs/archive_format.md describes the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from ...module_utils.formats.capture_facts import CaptureFacts
from ..base import libraries
from ..base.durations import LATEST
from ..base.errors import ControllerError
from ..model.frame import Frame, Kind
from ..model.location import NOWHERE, Locations
from ..model.samples import BYTES, OBJECTS, Located
from ..model.sampling import Measure, Sampling, Scheme
from ..model.series import Moment

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
_FORMAT_KEY = b"offheap.samples"
_VALUES = ("objects", "bytes", "accum_objects", "accum_bytes")
# How many stacks have their frames in memory at once while they are hashed.
_AT_ONCE = 1 << 12
# The column that only files of sources with names have, beside ``frames``: null where a frame is a place in an image.
_NAMES = "names"
_KIND = Frame._fields.index("kind")
_MEASURE, _SCHEME, _INTERVAL = b"offheap.measure", b"offheap.scheme", b"offheap.interval"


class SamplesError(ControllerError):
    """A file of samples cannot be written or read. The message says which and why."""


class StackPlaces(NamedTuple):
    """The places of stacks: stack ``numbers[i]`` is ``places[bounds[i]:bounds[i + 1]]``, positions in ``locations``
    followed by ``names``, leaf first."""

    numbers: Integers
    locations: Locations
    names: list[Frame]
    places: Integers
    bounds: Integers


def write(
    path: Path,
    profile: Located,
    facts: CaptureFacts,
    sequence: int,
    columns_too: Mapping[str, Any] | None = None,
    about_too: Mapping[bytes, str] | None = None,
) -> None:
    """Write the samples of a capture with these (checked) facts, and what else is to be in the file.

    Raises OSError, SamplesError.
    """
    count = len(profile.bounds) - 1
    columns: dict[str, Any] = {
        "unit": _constant(facts.unit, count),
        "host": _constant(facts.host, count),
        "process": _constant(facts.process.key, count),
        "label": _constant(facts.label, count),
        "sequence": pa.array(np.full(count, sequence, dtype=np.int64)),
        "time": pa.array([_moment(facts.dump.time)] * count, pa.timestamp("us")),
        "sample_interval": pa.array(np.full(count, min(profile.sampling.interval, (1 << 63) - 1), dtype=np.int64)),
        "stack": pa.array(_stack_numbers(profile, facts.sums)),
        **{name: pa.array(row) for name, row in zip(_VALUES, profile.values, strict=True)},
        "frames": list_of(profile.bounds, _frames(profile)),
        "threads": _threads(profile, count),
    }
    if profile.names:
        columns[_NAMES] = list_of(profile.bounds, _names(profile))
    about = {
        _FORMAT_KEY: str(FORMAT),
        _MEASURE: profile.measure.value,
        _SCHEME: profile.sampling.scheme.value,
        _INTERVAL: str(profile.sampling.interval),
        **(about_too or {}),
    }
    columns.update(columns_too or {})
    table = pa.table(columns, metadata=about)
    # Packed by zstd it is a fifth smaller, and takes half as long again to write.
    pq.write_table(
        table,
        path,
        compression="snappy",
        use_dictionary=True,
        write_statistics=["time", "stack"],
        store_schema=True,
        write_page_checksum=True,  # snappy itself does not notice damage
    )


def is_current(path: Path) -> bool:
    """Whether there is a samples file in the format that ``write`` uses now."""
    try:
        return (pq.read_metadata(path).metadata or {}).get(_FORMAT_KEY) == b"%d" % FORMAT
    except (OSError, ValueError, pa.ArrowException):
        return False


def read_moment(path: Path, time: float, allocated: bool = False) -> Moment:
    """What a capture holds, by stack, or what was ever ``allocated`` (zeros where its source does not say); ``time``
    (seconds since the epoch) is when. Raises SamplesError."""
    names = ["stack", *(_VALUES[2:] if allocated else _VALUES[:2])]
    with reading(path):
        table = read_columns(path, names)
        stack, objects, size = (table.column(name).to_numpy() for name in names)
        measure, sampling = _measured(table)
    return Moment(time, Measure.ALLOCATED if allocated else measure, sampling, stack, objects, size)


def read_stacks(path: Path, facts: CaptureFacts) -> StackPlaces:
    """What the stack numbers of a capture with these facts stand for. Raises SamplesError."""
    with reading(path):
        table = read_columns(path, ["stack", "frames", _NAMES])
        return StackPlaces(table.column("stack").to_numpy(), *_places(table, facts.sums))


def read(path: Path, facts: CaptureFacts) -> Located:
    """The whole profile of a capture with these facts. Raises SamplesError."""
    with reading(path):
        return _whole(read_columns(path, [*_VALUES, "frames", _NAMES, "threads"]), facts)


def _whole(table: Any, facts: CaptureFacts) -> Located:
    locations, names, places, bounds = _places(table, facts.sums)
    threads = flat_of(table, "threads")
    thread_bounds = bounds_of(table, "threads")
    number = threads.field("thread").to_numpy(zero_copy_only=False).astype(np.int64)
    named = zip(number.tolist(), threads.field("name").to_pylist(), strict=True)
    thread_values = np.zeros((4, len(number)))
    for row, name in ((OBJECTS, "objects"), (BYTES, "bytes")):
        thread_values[row] = threads.field(name).to_numpy(zero_copy_only=False)
    measure, sampling = _measured(table)
    return Located(
        measure=measure,
        sampling=sampling,
        locations=locations,
        names=names,
        stacks=places,
        bounds=bounds,
        values=np.array([table.column(name).to_numpy() for name in _VALUES]),
        thread_stack=np.repeat(np.arange(len(bounds) - 1, dtype=np.int64), np.diff(thread_bounds)),
        thread_uid=number,
        thread_values=thread_values,
        thread_names={uid: name for uid, name in named if name},
    )


def _measured(table: Any) -> tuple[Measure, Sampling]:
    about = table.schema.metadata or {}
    measure, scheme, interval = (about[name].decode() for name in (_MEASURE, _SCHEME, _INTERVAL))
    return Measure(measure), Sampling(Scheme(scheme), int(interval))


def _places(table: Any, sums: Mapping[str, str]) -> tuple[Locations, list[Frame], Integers, Integers]:
    """(locations, names, the position of each frame's location or name over all rows, bounds of the rows)"""
    flat = flat_of(table, "frames")
    modules, module = _encoded(flat.field("module"))
    build_ids, build_id = _encoded(flat.field("build_id"))
    offset = flat.field("offset").to_numpy(zero_copy_only=False)
    offsets, number = np.unique(offset, return_inverse=True)
    image = module * max(len(build_ids), 1) + build_id
    _keys, first, position = np.unique(image * max(len(offsets), 1) + number, return_index=True, return_inverse=True)
    used, image_of = np.unique(image[first], return_inverse=True)
    images = [
        (modules[at // max(len(build_ids), 1)] or "", build_ids[at % max(len(build_ids), 1)] or "")
        for at in used.tolist()
    ]
    found = offset[first].astype(np.uint64)
    locations, names = Locations(images, image_of, found, found, sums), []
    if _NAMES in table.column_names:
        names = _named_places(flat_of(table, _NAMES), position, len(locations))
    return locations, names, position, bounds_of(table, "frames")


def _named_places(flat: Any, position: Integers, locations: int) -> list[Frame]:
    """The names; writes their numbers, which follow those of the locations, to ``position``."""
    is_named = flat.is_valid()
    known: dict[tuple[Any, ...], int] = {}
    rows = zip(*(flat.field(part).filter(is_named).to_pylist() for part in Frame._fields), strict=True)
    numbers = [known.setdefault(row, len(known)) for row in rows]
    position[is_named.to_numpy(zero_copy_only=False)] = np.array(numbers, dtype=np.int64) + locations
    return [Frame(*row)._replace(kind=Kind(row[_KIND])) for row in known]


def flat_of(table: Any, column: str) -> Any:
    """The elements of a column of lists, one after the other."""
    return _one_piece(table, column).flatten()


def bounds_of(table: Any, column: str) -> Integers:
    """Where each list of a column begins in ``flat_of`` it, and where the last one ends."""
    lengths = _one_piece(table, column).value_lengths().to_numpy(zero_copy_only=False)
    return np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))


def _one_piece(table: Any, column: str) -> Any:
    chunks = table.column(column).combine_chunks()
    if isinstance(chunks, pa.ChunkedArray):
        return chunks.chunk(0) if chunks.num_chunks else pa.array([], chunks.type)
    return chunks


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises SamplesError for whatever a file that was damaged makes of its columns."""
    try:
        yield
    except SamplesError:
        raise
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        # What the system says has a number, what is not Parquet has none.
        damaged = "" if getattr(error, "errno", None) else "; it is damaged: delete it, and it is made anew"
        raise SamplesError(f"{path}: {error}{damaged}") from error


def read_columns(path: Path, columns: Sequence[str]) -> Any:
    """These columns of the table, those that it has. Raises SamplesError."""
    with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(columns=list(columns), use_threads=False)


def _encoded(column: Any) -> tuple[list[str | None], Integers]:
    """(distinct texts, the position of each row's text)"""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode("encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _stack_numbers(profile: Located, sums: Mapping[str, str]) -> Integers:
    """A number for each stack; the same places always give the same number.

    A host is not trusted and must not be able to make up a stack with another one's number, since a number is named
    once for all hosts. So the numbers are 64 bits of a cryptographic hash of each frame's offset and of all that its
    names come from.
    """
    places = profile.locations
    images = [
        blake2b(_identity(module, build_id, sums.get(build_id, "")), digest_size=8).digest()
        for module, build_id in places.images
    ]
    known = np.empty(len(places), dtype=[("image", "<u8"), ("offset", "<u8")])
    known["image"] = np.frombuffer(b"".join(images), dtype="<u8")[places.image]
    known["offset"] = places.offset
    if profile.names:
        known = np.append(known, _digests(profile.names, known.dtype))
    hashed = []
    for first in range(0, len(profile.bounds) - 1, _AT_ONCE):
        some = profile.bounds[first : first + _AT_ONCE + 1]
        data = known[profile.stacks[some[0] : some[-1]]].tobytes()
        limits = ((some - some[0]) * known.itemsize).tolist()
        hashed += [blake2b(data[start:end], digest_size=8).digest() for start, end in pairwise(limits)]
    return np.frombuffer(b"".join(hashed), dtype="<i8")


def _identity(module: str, build_id: str, sha256: str) -> bytes:
    """What stands for an image. Captures of older versions have no sums, and keep their numbers."""
    name = f"{build_id}\0{sha256}\0{PurePosixPath(module).name}" if sha256 else build_id or module
    return name.encode()


def _digests(names: Sequence[Frame], dtype: Any) -> Any:
    """What stands for names in the place of image and offset."""
    texts = ["\0".join(map(str, _plain(frame))).encode("utf-8", "replace") for frame in names]
    return np.frombuffer(b"".join([blake2b(text, digest_size=16).digest() for text in texts]), dtype=dtype)


def _frames(profile: Located) -> Any:
    places = profile.locations
    # A name has no place in an image.
    used = np.concatenate((places.image, np.full(len(profile.names), len(places.images)))).astype(np.int32)
    images = used[profile.stacks]
    modules, build_ids = ([*(name[part] for name in places.images), NOWHERE] for part in (0, 1))
    offsets = np.zeros(len(used), dtype=np.int64)
    offsets[: len(places)] = (places.offset & np.uint64((1 << 63) - 1)).astype(np.int64)
    return pa.StructArray.from_arrays(
        [_chosen(modules, images), _chosen(build_ids, images), pa.array(offsets[profile.stacks])],
        names=["module", "build_id", "offset"],
    )


def _names(profile: Located) -> Any:
    """The name of each place over all stacks that has one, null for the others."""
    number = profile.stacks.astype(np.int64) - len(profile.locations)
    at = np.maximum(number, 0)
    columns = [
        _chosen(part, at) if isinstance(part[0], str) else pa.array(np.array(part, dtype=np.int64)[at])
        for part in zip(*map(_plain, profile.names), strict=True)
    ]
    return pa.StructArray.from_arrays(columns, names=list(Frame._fields), mask=pa.array(number < 0))


def _plain(frame: Frame) -> tuple[str | int, ...]:
    """A frame's parts as texts and numbers."""
    return frame.function, frame.module, frame.kind.value, frame.offset, frame.file, frame.line, frame.signature


def _chosen(texts: Sequence[str | None], positions: NDArray[np.integer]) -> Any:
    """The text at each position, with each text stored once."""
    known = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    none = -1
    numbers = np.array([none if text is None else known[text] for text in texts], dtype=np.int32)[positions]
    return pa.DictionaryArray.from_arrays(pa.array(numbers, mask=numbers == none), pa.array(list(known), pa.string()))


def _threads(profile: Located, count: int) -> Any:
    """What each thread holds of each stack; threads have jemalloc's own numbers."""
    lengths = np.bincount(profile.thread_stack, minlength=count)
    bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)))
    number = profile.thread_uid.astype(np.uint64)
    threads, position = np.unique(number, return_inverse=True)
    names = [profile.thread_names.get(uid) for uid in threads.tolist()]
    columns = pa.StructArray.from_arrays(
        [
            pa.array(number),
            _chosen(names, position),
            pa.array(profile.thread_values[OBJECTS]),
            pa.array(profile.thread_values[BYTES]),
        ],
        names=["thread", "name", "objects", "bytes"],
    )
    return list_of(bounds, columns)


def list_of(bounds: Integers, values: Any) -> Any:
    """A column of lists, from their elements one after the other."""
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), values)


def _constant(text: str | None, count: int) -> Any:
    indices = pa.array(np.zeros(count, dtype=np.int32))
    if text is None:
        return pa.nulls(count, pa.dictionary(pa.int32(), pa.string()))
    return pa.DictionaryArray.from_arrays(indices, pa.array([text], pa.string()))


def _moment(seconds: float) -> int | None:
    return round(seconds * 1e6) if 0 <= seconds < LATEST else None
