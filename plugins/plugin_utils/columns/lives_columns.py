# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The lives of one capture as a Parquet file, made on first use: a samples file of all stacks in the book, with what
lives and the lives themselves in further columns. docs/archive_format.md describes them.

They come from the book that our agent writes beside a dump, or from a recording that has allocations and frees with
their times.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...module_utils.formats import limits
from ...module_utils.formats.capture_facts import ASYNC_PROFILER, CaptureFacts
from ...module_utils.formats.maps import Mapping as Mapped
from ..archive.archive import Archive, ArchiveError, read_dump
from ..archive.capture import Capture
from ..base import child, libraries, unpack
from ..base.errors import ControllerError
from ..model import located_bytes
from ..model.lives import BUCKETS, Lives, youngest
from ..model.raw import CountColumns, Counts, Records
from ..model.samples import located
from ..model.sampling import Measure, Sampling, Scheme
from ..model.series import Moment, Stack
from ..readers import detect, heap_v2, jfr, lives_book
from ..readers.lives_book import Book
from . import parquet, sample_cache
from .parquet import SamplesError

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

NAME = "lives.parquet"
_BIRTHS, _DEATHS, _AGES, _BORN, _SIZES = "births", "deaths", "ages", "born", "sizes"
_COLUMNS = (_BIRTHS, _DEATHS, _AGES, _BORN, _SIZES)
_BEGAN, _NOW, _LOST = b"offheap.began", b"offheap.now", b"offheap.lost"


@dataclass(frozen=True)
class Unnamed:
    """Lives whose stacks are the numbers of ``moment``, which holds what lives."""

    moment: Moment
    lives: Callable[[list[Stack]], Lives]


def known_of(capture: Capture) -> bool:
    """Whether a capture has lives."""
    recorded = capture.facts.source == ASYNC_PROFILER and capture.facts.measure == Measure.LIVE.value
    return recorded or capture.lives is not None


def of(archive: Archive, capture: Capture, aside: Path | None = None) -> Path:
    """The lives file of a capture that has lives; as sample_cache.of."""
    return sample_cache.kept(archive, capture, NAME, lambda path: _make(capture, path), aside)


def read(path: Path) -> Unnamed:
    """What ``of`` has made. Raises SamplesError."""
    moment = parquet.read_moment(path, 0.0)
    with parquet.reading(path):
        table = parquet.read_columns(path, _COLUMNS)
        about = table.schema.metadata or {}
        began, now, lost = float(about[_BEGAN]), float(about[_NOW]), int(about[_LOST])
        births = _rows(table, _BIRTHS)
        deaths, ages = (_rows(table, name).reshape(len(births), BUCKETS) for name in (_DEATHS, _AGES))
        counts = np.diff(parquet.bounds_of(table, _BORN))
        born, sizes = _rows(table, _BORN), _rows(table, _SIZES)
    stack = np.repeat(np.arange(len(births)), counts)

    def lives(stacks: list[Stack]) -> Lives:
        return Lives(began, now, moment.sampling, stacks, births, deaths, ages, stack, born, sizes, lost)

    return Unnamed(moment._replace(time=now), lives)


def _rows(table: Any, name: str) -> Any:
    return parquet.flat_of(table, name).to_numpy(zero_copy_only=False)


def _make(capture: Capture, path: Path) -> None:
    size = capture.facts.dump.size + limits.LARGEST_LIVES
    try:
        answer = child.call(_parsed, capture.dump, capture.lives, capture.facts, size=size)
        profile, about = located_bytes.unpacked(answer)
        columns = {name: _checked(about[name], len(profile.bounds) - 1) for name in _COLUMNS}
        more = {_BEGAN: str(float(about["began"])), _NOW: str(float(about["now"])), _LOST: str(int(about["lost"]))}
    except (ControllerError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise SamplesError(f"{capture.path} has no lives: {error}") from error
    try:
        parquet.write(path, profile, capture.facts, capture.sequence, columns, more)
    except OSError as error:
        raise ArchiveError(f"cannot write {path}: {error}") from error


def _checked(column: Sequence[Sequence[float]], count: int) -> Any:
    """A list of numbers for each stack, of what a child that parsed a host's bytes has answered."""
    values, bounds = (np.array(part, dtype=kind) for part, kind in zip(column, ("<f8", "<i8"), strict=True))
    if len(bounds) != count + 1 or bounds[0] or bounds[-1] != len(values) or (np.diff(bounds) < 0).any():
        raise ValueError("the stacks do not follow each other")
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("a number is not finite")
    return parquet.list_of(bounds, values)


def _parsed(dump: Path, beside: Path | None, facts: CaptureFacts) -> bytes:
    """In the child."""
    content = read_dump(dump, facts.dump.sha256)
    if beside is None:
        found = jfr.allocations(content, str(dump), detect.told(facts))
        return located_bytes.packed(located(jfr.records(found, str(dump)), facts.build_ids), _about_recorded(found))
    book = lives_book.parse(unpack.read(beside, limits.LARGEST_LIVES), str(beside))
    stack, count = np.asarray(book.stack, dtype=np.int64), len(book.ends)
    living = np.bincount(stack, minlength=count), np.bincount(stack, np.asarray(book.size, dtype=np.float64), count)
    sampling, mappings = Sampling(Scheme.POISSON, book.interval), heap_v2.mappings(content, str(dump))
    records = records_of(str(beside), sampling, mappings, (book.addresses, book.ends), living)
    return located_bytes.packed(located(records, facts.build_ids, facts.reused), _about(book))


def records_of(
    name: str,
    sampling: Sampling,
    mappings: list[Mapped],
    stacks: tuple[array[int], array[int]],
    living: tuple[Any, Any],
) -> Records:
    """Stacks (addresses, and where each stack ends in them) with the objects and bytes that live of each."""
    addresses, ends = stacks
    objects, size = living
    numbers: dict[int, int] = {}
    places = array("I", [numbers.setdefault(address, len(numbers)) for address in addresses])
    counts = CountColumns()
    zeros = np.zeros(len(ends))
    names = ("objects", "bytes", "accum_objects", "accum_bytes")
    for column, values in zip(names, (objects, size, zeros, zeros), strict=True):
        getattr(counts, column).frombytes(values.astype(np.uint64).tobytes())
    return Records(
        file=name,
        measure=Measure.LIVE,
        sampling=sampling,
        total=Counts(int(objects.sum()), int(size.sum()), 0, 0),
        threads=[],
        addresses=array("Q", numbers),
        stack_places=places,
        stack_ends=ends,
        counts=counts,
        thread_stack=array("I"),
        thread_uid=array("Q"),
        thread_counts=CountColumns(),
        mappings=mappings,
    )


def _about(book: Book) -> Mapping[str, Any]:
    count = len(book.ends)
    return _columns(
        (book.began, book.now, book.lost),
        np.asarray(book.births, dtype=np.int64),
        np.asarray(book.deaths, dtype=np.float64).reshape(count, BUCKETS),
        np.asarray(book.ages, dtype=np.float64).reshape(count, BUCKETS) / 1000,
        (
            np.asarray(book.stack, dtype=np.int64),
            book.began + np.asarray(book.born, dtype=np.float64) / 1000,
            np.asarray(book.size, dtype=np.float64),
        ),
    )


def _about_recorded(found: jfr.Allocations) -> Mapping[str, Any]:
    """What has no free although its address came again is lost: nobody knows when it died."""
    count, stack = len(found.stacks), found.stack.astype(np.int64)
    died = np.flatnonzero(found.freed)
    age = np.maximum(found.ended[died] - found.times[died], 0.0)
    where = stack[died] * BUCKETS + np.searchsorted([youngest(bucket) for bucket in range(1, BUCKETS)], age, "right")
    deaths, ages = (np.bincount(where, weights, count * BUCKETS) for weights in (None, age))
    living = np.flatnonzero(found.live)
    living = living[np.argsort(stack[living], kind="stable")]
    return _columns(
        (found.begin, found.end, int((~found.live & ~found.freed).sum())),
        np.bincount(stack[found.live | found.freed], minlength=count),
        deaths.astype(np.float64).reshape(count, BUCKETS),
        ages.reshape(count, BUCKETS),
        (stack[living], found.times[living], found.sizes[living].astype(np.float64)),
    )


def _columns(
    head: tuple[float, float, int], births: Any, deaths: Any, ages: Any, living: tuple[Any, Any, Any]
) -> Mapping[str, Any]:
    """When the lives began, when they were looked at, and how many are lost. Of each stack, births, and a row of deaths
    and of ages in seconds; of each that lives, ordered by stack, the stack, when it was born (seconds since the epoch)
    and its bytes."""
    began, now, lost = head
    count, (stack, born, size) = len(births), living
    bounds = np.searchsorted(stack, np.arange(count + 1)).tolist()
    of_buckets = [BUCKETS * number for number in range(count + 1)]
    return {
        "began": began,
        "now": now,
        "lost": lost,
        _BIRTHS: [births.tolist(), list(range(count + 1))],
        _DEATHS: [deaths.ravel().tolist(), of_buckets],
        _AGES: [ages.ravel().tolist(), of_buckets],
        _BORN: [born.tolist(), bounds],
        _SIZES: [size.tolist(), bounds],
    }
