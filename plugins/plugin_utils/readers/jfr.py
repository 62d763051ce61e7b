# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Recordings of native memory: async-profiler's mode nativemem, and that of Datadog's profiler for Java.

``profiler.Malloc`` has the address, size and stack of every allocation that carries the count of bytes over a multiple
of the interval R, and ``profiler.Free`` the address of every free (async-profiler 4, src/mallocTracer.cpp). Sizes are
not scaled: an allocation smaller than R is recorded with probability size / R and stands for R bytes, a larger one is
always recorded. So each counts max(size, R). R is a setting in the file's first chunk.

An allocation ends when its address is freed. One whose free was lost counts as live until the address is recorded
again. A recording without any free (``nofree``) says what was allocated, not what is live.

``datadog.NativeMemoryAllocation`` is chosen at random, each byte alike (Poisson), and has in ``weight`` how many
objects it stands for, 1 / (1 - exp(-size / R)), with an R that is made larger while there is much to record. Frees are
not recorded (github.com/DataDog/java-profiler, nativemem).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ...module_utils.formats.jfr_header import MAGIC, JfrError
from ...module_utils.formats.perf_map_line import without_hidden_class
from ..base import libraries
from ..base.printable import printable
from ..model.frame import Frame, Kind
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure, Sampling, Scheme
from .format_error import FormatError, UnusableError
from .jfr_chunk import Chunk, split
from .stack_builder import MOST_FRAMES, StackBuilder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .jfr_chunk import Column

    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]
    Numbers = NDArray[np.float64]
else:
    np = libraries.optional("numpy")

_MALLOC, _FREE, _SETTING = "profiler.Malloc", "profiler.Free", "jdk.ActiveSetting"
_DATADOG = "datadog.NativeMemoryAllocation"
_NATIVE = frozenset({"Native", "C++", "Kernel"})
_MOST_EVENTS = 1 << 24
# No process allocates so much.
_LARGEST = 1 << 62


class Allocations(NamedTuple):
    """Every recorded allocation: when (seconds since the epoch), how large, how many objects it stands for, when it
    ended (infinite if it is still live), whether that was by a free, and its stack, a number in ``stacks``, whose
    frames are leaf first. ``begin`` and ``end`` are those of the recording; ``sampling`` has R."""

    times: Numbers
    sizes: Column
    objects: Numbers
    ended: Numbers
    freed: Flags
    stack: Column
    stacks: list[tuple[Frame, ...]]
    begin: float
    end: float
    sampling: Sampling
    frees: int

    @property
    def live(self) -> Flags:
        return np.isinf(self.ended)

    @property
    def weights(self) -> Numbers:
        """Bytes that each stands for."""
        return self.objects * self.sizes


def recognizes(data: bytes) -> bool:
    return data.startswith(MAGIC)


def parse(data: bytes, name: str, told: Told) -> Records:
    """The recording in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    return records(allocations(data, name, told), name)


def records(found: Allocations, name: str) -> Records:
    """What each of its stacks has allocated and holds; ``name`` is only for messages. Raises UnusableError."""
    builder = StackBuilder(name)
    places = [[builder.named(frame) for frame in frames] for frames in found.stacks]
    weights, objects = found.weights, found.objects
    counted = found.stack.astype(np.int64)

    def sums(values: Numbers) -> list[int]:
        per_stack = np.bincount(counted, values, len(places)) if len(places) else np.zeros(0)
        return [round(value) for value in per_stack.tolist()]

    allocated = [sums(objects), sums(weights)]
    live = [sums(objects * found.live), sums(weights * found.live)]
    columns = [*live, *allocated] if found.frees else allocated
    for stack, counts in zip(places, zip(*columns, strict=True), strict=True):
        builder.add(stack, counts)
    measure = Measure.LIVE if found.frees else Measure.ALLOCATED
    return builder.records(measure, found.sampling, unbiased=True, time=found.end)


def allocations(data: bytes, name: str, told: Told) -> Allocations:
    """Every allocation in a recording. Raises FormatError, UnusableError."""
    try:
        return _Recording(name, told).read(data)
    except JfrError as error:
        raise FormatError(name, 1, f"a recording of Java Flight Recorder ({printable(str(error))})") from None


class _Recording:
    """Collects the events of all chunks. ``name`` is for messages."""

    def __init__(self, name: str, told: Told) -> None:
        self._name = name
        self._interval = told.interval or None
        self._asked = False
        self._begin, self._end = math.inf, 0.0
        self._numbers: dict[tuple[Frame, ...], int] = {}
        self._mallocs: list[tuple[Numbers, Column, Column, Column, Column, Numbers]] = []
        self._frees: list[tuple[Numbers, Column, Column]] = []
        self._order: tuple[list[int], list[int]] = ([], [])
        self._events = 0

    def read(self, data: bytes) -> Allocations:
        for part in split(data):
            self._add(Chunk(part))
        if not self._end:
            raise UnusableError(self._name, "has no finished chunk: stop the profiler, then copy the file")
        # A service at rest allocates nothing, and is told from a recording of something else by the setting.
        if not self._asked and not any(len(column[0]) for column in self._mallocs):
            raise UnusableError(
                self._name,
                f"has no {_MALLOC}: it is no recording of native memory (async-profiler, -e nativemem; Datadog's"
                " profiler for Java, DD_PROFILING_EXPERIMENTAL_DDPROF_NATIVEMEM_ENABLED)",
            )
        if self._interval is None:
            raise UnusableError(
                self._name, "does not say how it was sampled: say it, source_interval (fab: --source live:bytes:1MiB)"
            )
        times, ticks, addresses, sizes, stack, told = (
            np.concatenate(parts) for parts in zip(*self._mallocs, strict=True)
        )
        objects, sampling = _stood_for(sizes, told, self._interval)
        freed_times, freed_at, freed = (np.concatenate(parts) for parts in zip(*self._frees, strict=True))
        chunks = [np.repeat(np.arange(len(counts)), counts) for counts in self._order]
        next_there = _next_there(
            np.concatenate((addresses, freed)), np.concatenate((ticks, freed_at)), np.concatenate(chunks)
        )[: len(addresses)]
        # The one behind the last is that of those that have none.
        ended = np.concatenate((times, freed_times, [math.inf]))[next_there]
        return Allocations(
            times,
            sizes,
            objects,
            ended,
            (next_there >= len(addresses)) & np.isfinite(ended),
            stack,
            list(self._numbers),
            self._begin,
            self._end,
            sampling,
            len(freed),
        )

    def _add(self, chunk: Chunk) -> None:
        self._begin = min(self._begin, chunk.start / 1e9)
        self._end = max(self._end, (chunk.start + chunk.duration) / 1e9)
        self._learn_interval(chunk)
        kind, more = (_DATADOG, ("weight",)) if chunk.has(_DATADOG) else (_MALLOC, ())
        start, traces, addresses, sizes, *told = chunk.columns(
            kind, ("startTime", "stackTrace", "address", "size", *more)
        )
        weights = told[0] if told else np.zeros(len(sizes))
        freed_at, freed = chunk.columns(_FREE, ("startTime", "address"))
        self._events += len(start) + len(freed)
        if self._events > _MOST_EVENTS:
            raise UnusableError(
                self._name, f"has more than {_MOST_EVENTS} allocations and frees: record for a shorter time"
            )
        if len(sizes) and (sizes.max() >= _LARGEST or not sizes.min()):
            raise JfrError("an allocation of an impossible size")
        if told and not ((weights >= 1) & (weights < _LARGEST)).all():
            raise JfrError("an allocation of an impossible weight")
        known, back = np.unique(traces, return_inverse=True)
        frames = _Frames(chunk)
        numbers = [self._numbers.setdefault(frames.of(trace), len(self._numbers)) for trace in known.tolist()]
        stack = np.array(numbers, dtype=np.uint64)[back]
        self._mallocs.append((_seconds(chunk, start), start, addresses, sizes, stack, weights))
        self._frees.append((_seconds(chunk, freed_at), freed_at, freed))
        for counts, column in zip(self._order, (start, freed), strict=True):
            counts.append(len(column))

    def _learn_interval(self, chunk: Chunk) -> None:
        for setting in chunk.each(_SETTING):
            if setting.get("name") == "nativemem":
                value = setting.get("value")
                if not isinstance(value, str) or not value.isascii() or not value.isdigit() or len(value) > 18:
                    raise JfrError("its interval is no number")
                self._interval = max(int(value), 1)
                self._asked = True


class _Frames:
    """The stacks of a chunk, by number."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._known: dict[tuple[int, int], Frame] = {}
        self._type = chunk.number_of("jdk.types.StackTrace")
        if self._type is None:
            return
        self._frames, frame = chunk.field(self._type, "frames")
        (self._method, method), (self._kind, kind) = (chunk.field(frame.type, name) for name in ("method", "type"))
        self._methods, self._kinds = method.type, kind.type
        (self._class, of_class), (self._name, name) = (chunk.field(method.type, one) for one in ("type", "name"))
        self._classes, self._symbols = of_class.type, name.type
        self._class_name, _field = chunk.field(of_class.type, "name")

    def of(self, trace: int) -> tuple[Frame, ...]:
        """The frames of a stack, leaf first. Raises JfrError."""
        found = self._chunk.value(self._type, trace) if self._type is not None else None
        if not found:
            return (Frame("[unknown]", ""),)
        frames = _of(found, self._frames)
        if not isinstance(frames, list) or len(frames) > MOST_FRAMES:
            raise JfrError(f"a stack of more than {MOST_FRAMES} frames")
        return tuple([self._frame(frame) for frame in frames])

    def _frame(self, found: Any) -> Frame:
        method, kind = _of(found, self._method), _of(found, self._kind)
        if not isinstance(method, int) or not isinstance(kind, int):
            raise JfrError("a frame without a method")
        key = (method, kind)
        if key not in self._known:
            self._known[key] = self._named(method, self._text(self._kinds, kind) in _NATIVE)
        return self._known[key]

    def _named(self, number: int, native: bool) -> Frame:
        method = self._chunk.value(self._methods, number)
        if not method:
            return Frame("[unknown]", "")
        number_of_class = _of(method, self._class)
        its_class = self._chunk.value(self._classes, number_of_class) if number_of_class else None
        module = self._text(self._symbols, _of(its_class, self._class_name)) if its_class else ""
        function = self._text(self._symbols, _of(method, self._name))
        if native:
            # Code without a symbol has the path of its library for a name.
            return Frame(function.rpartition("/")[2] if function.startswith("/") else function or "[unknown]", module)
        name = ".".join(filter(None, (module.replace("/", "."), function)))
        return Frame(without_hidden_class(name), "[java]", Kind.JAVA)

    def _text(self, type_number: int, number: Any) -> str:
        """The text in a constant of one field."""
        found = self._chunk.value(type_number, number) if isinstance(number, int) else None
        while isinstance(found, tuple):
            found = found[0] if found else None
        return found if isinstance(found, str) else ""


def _of(found: Any, position: int) -> Any:
    """A field of an object. Raises JfrError for what is none: the file itself says of which type a value is."""
    if not isinstance(found, tuple):
        raise JfrError("a stack whose parts are no objects")
    return found[position]


def _stood_for(sizes: Column, told: Numbers, interval: int) -> tuple[Numbers, Sampling]:
    """How many objects each allocation stands for, as its recording says (0 if it does not), and how it was chosen."""
    if not told.any():
        scheme = Sampling(Scheme.SYSTEMATIC, interval) if interval > 1 else EXACT
        return np.maximum(sizes, np.uint64(max(interval, 1))) / np.maximum(sizes, 1), scheme
    sampled = told > 1
    largest = sizes[sampled] / -np.log1p(-1 / told[sampled])
    return told, Sampling(Scheme.POISSON, max(interval, int(largest.max(initial=0))))


def _seconds(chunk: Chunk, ticks: Column) -> Numbers:
    """Times of events as seconds since the epoch."""
    times: Numbers = chunk.start / 1e9 + (ticks.astype(np.float64) - chunk.ticks) / chunk.frequency
    return times


def _next_there(addresses: Column, ticks: Column, chunks: Integers) -> Integers:
    """For each event the next one at its address, -1 if there is none."""
    order = np.lexsort((ticks, chunks, addresses))
    where = addresses[order]
    following = np.full(len(where), -1, dtype=np.int64)
    again = where[1:] == where[:-1]
    following[order[:-1][again]] = order[1:][again]
    return following


def each_live(found: Allocations) -> Iterator[tuple[tuple[Frame, ...], int, float]]:
    """What is still live, as (stack, bytes, age in seconds at the end)."""
    rows = np.flatnonzero(found.live)
    weights = found.weights
    for row in rows.tolist():
        yield found.stacks[int(found.stack[row])], int(weights[row]), found.end - float(found.times[row])
