# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The one model everything else speaks: samples = stack -> live (and accumulated) objects and bytes.

A profile is what a dump says after unbiasing and symbolising, with the allocator's own frames cut off. It is
columnar: each frame and each stack is kept once, the numbers stand in arrays beside the stacks.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..readers.heap_v2 import Dump

# A 95 % interval in standard deviations. Every "+-" that a user sees is this wide.
CONFIDENCE = 1.96


class Kind(Enum):
    """What a frame is. An INLINED frame has no address of its own, JIT code is machine code that no file holds; where
    the runtime has told what it is, it has the kind of its language."""

    NATIVE = "native"
    INLINED = "inlined"
    JIT = "jit"
    JAVA = "java"
    PYTHON = "python"
    JS = "js"
    UNKNOWN = "unknown"


class Frame(NamedTuple):
    """A place in the code. ``function`` is empty where no symbol covers it; then ``offset`` says where in the module.

    ``module`` is the file's base name ("libz.so.1.2.13"), empty for memory that belongs to no file, "[java]" and the
    like for code that a runtime has compiled and named; ``signature`` is then the full name that it gave.
    """

    function: str
    module: str
    kind: Kind = Kind.NATIVE
    offset: int = 0
    file: str = ""
    line: int = 0
    signature: str = ""

    @property
    def label(self) -> str:
        """The name to show: the function, else module+0xoffset, else what is known about the memory."""
        if self.function:
            return self.function
        if self.module:
            return f"{self.module}+{self.offset:#x}"
        return "[jit]" if self.kind is Kind.JIT else "[unmapped]"

    @property
    def group(self) -> str:
        """The name under which frames count as the same: like ``label``, but without an offset."""
        return self.function or self.module or self.label


# A resolver gives, for each of a dump's addresses in order, its frames, the innermost (inlined) first.
Resolver = Callable[[Dump], Sequence[Sequence[Frame]]]

# Functions after which the allocator begins: jeprof's list (RemoveUninterestingFrames, 5.3.0 and 5.3.1), which cuts
# a stack after the last one of these, and what a jemalloc with symbols shows between them.
_ALLOCATOR_FUNCTION = re.compile(
    r"(?:_rjem_)?je_(?:[a-z_]*alloc[a-z_]*|prof_[a-z_]+)|operator new(?:\[\])?|__builtin_(?:vec_)?(?:new|delete)"
    r"|(?:tc_)?(?:c|m|re|v|pv)alloc|(?:tc_)?(?:cfree|free|memalign|posix_memalign)|tc_(?:new|delete)(?:array)?(?:_nothrow)?"
    r"|aligned_alloc|[mrx]allocx|s?dallocx(?:_noflags)?|imalloc(?:_body|_no_sample)?|do_rallocx|i[rx]allocx_prof"
    r"|malloc_default|prof_(?:alloc_prep|tctx_create|backtrace(?:_impl)?)|(?:fallback)?[nN]ewImpl|fallback_impl"
    r"|(?:::)?do_malloc|::do_malloc_or_cpp_alloc|DoSampledAllocation"
    r"|simple_alloc::allocate|__malloc_alloc_template::allocate|TCMalloc.*|tcmalloc::.*"
)
_ALLOCATOR_MODULE = re.compile(r"libjemalloc[^/]*|liboffheap[^/]*\.so[^/]*")


def unbias(objects: int, size: int, sample_interval: int) -> tuple[float, float]:
    """What a sampled record stands for: (objects, bytes), both times 1 / (1 - exp(-(bytes / objects) / interval)).

    An allocation of Z bytes is sampled with probability 1 - exp(-Z / R). The formula, applied to each record before
    anything is summed, is jeprof's (AdjustSamples) and pprof's (scaleHeapSample); the order of the operations is
    jeprof's too, so that the results are the same doubles. With an interval of 0 or 1 every allocation was recorded.
    """
    if objects == 0 or sample_interval <= 1:
        return float(objects), float(size)
    scale = unbias_scale(size / objects, sample_interval)
    return objects * scale, size * scale


def unbias_scale(object_size: float, sample_interval: int) -> float:
    """How many objects of this mean size in bytes a sampled one stands for; the interval has at least 2 bytes."""
    probability = 1 - math.exp(-(object_size / sample_interval))
    # Zero bytes, or too few per object for a double to tell from zero: no allocator has such objects.
    return 1 / probability if probability > 0 else 1.0


def sampling_error(size: float, sample_interval: int) -> float:
    """Standard deviation of an unbiased sum of ``size`` bytes: sqrt(R * L), the upper bound that small objects reach.

    An allocation of Z bytes contributes Z^2 e^(-Z/R) / (1 - e^(-Z/R)) <= R * Z to the variance
    (jemalloc's doc_internal/PROFILING_INTERNALS.md).
    """
    return math.sqrt(sample_interval * size) if sample_interval > 1 and size > 0 else 0.0


@dataclass(frozen=True)
class Profile:
    """Samples of one dump, unbiased.

    ``stacks[i]`` are indices into ``frames``, leaf first, without the allocator's frames; it may be empty (where the
    unwinder found nothing). ``objects[i]``, ``bytes[i]`` are live, ``accum_*[i]`` since the start (0 without
    prof_accum). No stack occurs twice.
    """

    sample_interval: int
    frames: list[Frame]
    stacks: list[tuple[int, ...]]
    objects: array[float]
    bytes: array[float]
    accum_objects: array[float]
    accum_bytes: array[float]

    @property
    def total_bytes(self) -> float:
        return math.fsum(self.bytes)

    @property
    def total_objects(self) -> float:
        return math.fsum(self.objects)

    def error(self, size: float) -> float:
        """Half of the 95 % interval of ``size`` live bytes of this profile."""
        return CONFIDENCE * sampling_error(size, self.sample_interval)

    def labels(self, stack: Iterable[int]) -> list[str]:
        """The names of a stack's frames, leaf first; a stack without frames is named too."""
        return [self.frames[index].label for index in stack] or ["[no stack]"]


def from_dump(dump: Dump, resolve: Resolver) -> Profile:
    """The profile of a dump: unbiased record by record, then symbolised, cut and summed by stack.

    ``resolve`` is called once, with all distinct addresses in the dump.
    """
    frames: dict[Frame, int] = {}
    by_address: list[tuple[int, ...]] = []
    allocator_functions: set[int] = set()
    allocator_modules: set[int] = set()
    for address, resolved in enumerate(resolve(dump)):
        by_address.append(tuple([frames.setdefault(frame, len(frames)) for frame in resolved]))
        if any(is_allocator_function(frame) for frame in resolved):
            allocator_functions.add(address)
        elif any(_ALLOCATOR_MODULE.fullmatch(frame.module) for frame in resolved):
            allocator_modules.add(address)
    columns = [array("d") for _column in range(4)]
    stacks: dict[tuple[int, ...], int] = {}
    interval, counts = dump.sample_interval, dump.counts
    for record, addresses in enumerate(dump.stacks()):
        start = _first_own_frame(addresses, allocator_functions, allocator_modules)
        key = tuple([frame for address in addresses[start:] for frame in by_address[address]])
        position = stacks.setdefault(key, len(stacks))
        if position == len(columns[0]):
            for column in columns:
                column.append(0.0)
        live = unbias(counts.objects[record], counts.bytes[record], interval)
        columns[0][position] += live[0]
        columns[1][position] += live[1]
        if counts.accum_objects[record]:
            accumulated = unbias(counts.accum_objects[record], counts.accum_bytes[record], interval)
            columns[2][position] += accumulated[0]
            columns[3][position] += accumulated[1]
    return Profile(interval, list(frames), list(stacks), *columns)


def is_allocator_function(frame: Frame) -> bool:
    """Whether the frame is an entry of a memory allocator (jeprof's list) or an inner function of jemalloc."""
    return _ALLOCATOR_FUNCTION.fullmatch(frame.function) is not None


def is_allocator_module(frame: Frame) -> bool:
    """Whether the frame lies in jemalloc or in our agent."""
    return _ALLOCATOR_MODULE.fullmatch(frame.module) is not None


def _first_own_frame(addresses: array[int], functions: set[int], modules: set[int]) -> int:
    """Where in a stack (leaf first) the allocator ends: after the last of its functions, and after its module."""
    start = 0
    if not functions.isdisjoint(addresses):
        start = 1 + max(position for position, address in enumerate(addresses) if address in functions)
    while start < len(addresses) and addresses[start] in modules:
        start += 1
    return start
