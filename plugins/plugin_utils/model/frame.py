# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A place in the code as people know it, and which places are the allocator's own."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What a frame is. An INLINED frame has no address of its own. JIT is machine code outside any file; code that its
    runtime has named has the kind of its language instead."""

    NATIVE = "native"
    INLINED = "inlined"
    JIT = "jit"
    JAVA = "java"
    PYTHON = "python"
    JS = "js"
    UNKNOWN = "unknown"

    __hash__ = object.__hash__  # in C; that of Enum would take as long as all else of a frame's


class Frame(NamedTuple):
    """A place in the code. ``function`` is empty where no symbol covers it; then ``offset`` says where in the module.

    ``module`` is the file's base name ("libz.so.1.2.13"), empty for memory that belongs to no file, or "[java]" and the
    like for code that a runtime has compiled and named; ``signature`` is then the full name that the runtime gave.
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
        """The name by which frames count as the same: like ``label``, but without an offset."""
        return self.function or self.module or self.label


# Functions of the allocator: jeprof's list (RemoveUninterestingFrames, 5.3.0 and 5.3.1), which cuts a stack after the
# last of them, and the functions that a jemalloc or mimalloc with symbols shows between them, or async-profiler before
# malloc.
_ALLOCATOR_FUNCTION = re.compile(
    r"(?:_rjem_)?je_(?:[a-z_]*alloc[a-z_]*|prof_[a-z_]+)|operator new(?:\[\])?(?:\([^()]*\))?"
    r"|__builtin_(?:vec_)?(?:new|delete)"
    r"|(?:tc_)?(?:c|m|re|v|pv)alloc|(?:tc_)?(?:cfree|free|memalign|posix_memalign)|tc_(?:new|delete)(?:array)?(?:_nothrow)?"
    r"|(?:[cm]alloc|realloc|posix_memalign|aligned_alloc)_hook"
    r"|aligned_alloc|[mrx]allocx|s?dallocx(?:_noflags)?|imalloc(?:_body|_no_sample)?|do_rallocx|i[rx]allocx_prof"
    r"|malloc_default|prof_(?:alloc_prep|tctx_create|backtrace(?:_impl)?)|(?:fallback)?[nN]ewImpl|fallback_impl"
    r"|(?:::)?do_malloc|::do_malloc_or_cpp_alloc|DoSampledAllocation"
    r"|_?mi_(?:theap|heap|prof)_[a-z_]+|_?mi_(?:[mzc]alloc|realloc|new)(?:_[a-z_]+)?|_?mi_page_malloc[a-z_]*"
    r"|simple_alloc::allocate|__malloc_alloc_template::allocate|TCMalloc.*|tcmalloc::.*"
)
_ALLOCATOR_MODULE = re.compile(r"libjemalloc[^/]*|lib(?:offheap|asyncProfiler)[^/]*\.so[^/]*")


def is_allocator_function(frame: Frame) -> bool:
    """Whether the frame is an entry point of an allocator (jeprof's list), or within jemalloc or mimalloc."""
    return _is_entry(frame.function)


# Both are cached, since the captures of a fleet have the same names again and again.
@functools.lru_cache(1 << 16)
def _is_entry(function: str) -> bool:
    return _ALLOCATOR_FUNCTION.fullmatch(function) is not None


@functools.lru_cache(1 << 10)
def _is_library(module: str) -> bool:
    return _ALLOCATOR_MODULE.fullmatch(module) is not None


def without_inlined_allocator(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames of one place, innermost first, without an allocator's function that is inlined into one that is none.

    As in jeprof, the outermost decides whether a place is the allocator's: glibc's loader inlines its ``malloc`` into
    each of its callers.
    """
    if len(frames) < 2 or is_allocator_function(frames[-1]):
        return frames
    inlined = [number for number, frame in enumerate(frames) if is_allocator_function(frame)]
    return frames[inlined[-1] + 1 :] if inlined else frames


def is_allocator_module(frame: Frame) -> bool:
    """Whether the frame lies in jemalloc, in our agent, or in async-profiler, which stands before malloc."""
    return _is_library(frame.module)
