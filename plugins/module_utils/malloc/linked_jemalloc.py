# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The jemalloc that a program or a library has linked in, even if it is stripped: by the texts compiled into it.

One that was built with a prefix (Rust's tikv-jemallocator: ``_rjem_``) reads ``<PREFIX>MALLOC_CONF`` and nothing else
(jemalloc, src/jemalloc.c, obtain_malloc_conf).

This module is private to the collection.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from typing import NamedTuple

_NAME = b"MALLOC_CONF\0"
_VARIABLE = re.compile(rb"\0((?:[A-Z_][A-Z0-9_]{0,60}_)?MALLOC_CONF)(?=\0)")
_SPEAKS = b"<jemalloc>: "
# In prof_leakcheck (src/prof_data.c), which is compiled only with --enable-prof.
_PROFILER = b"<jemalloc>: Run jeprof on "
_BLOCK, _LONGEST = 1 << 20, 128


class LinkedJemalloc(NamedTuple):
    """``variables`` configure what is in a file, one for each jemalloc in there; ``can_profile`` says whether one was
    built with its profiler."""

    variables: tuple[str, ...]
    speaks: bool
    can_profile: bool

    @property
    def is_there(self) -> bool:
        """Whether it is jemalloc that reads these variables: others may set them."""
        return bool(self.variables) and self.speaks


@functools.lru_cache(maxsize=None)
def look(path: str) -> LinkedJemalloc:
    """What is in a file. Raises OSError."""
    variables: set[str] = set()
    speaks = can_profile = False
    tail = b""
    # O_NONBLOCK: in the place of the file there could be a pipe.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return LinkedJemalloc((), False, False)
        for block in iter(lambda: file.read(_BLOCK), b""):
            window = tail + block
            if _NAME in window:
                variables.update(match[1].decode("ascii") for match in _VARIABLE.finditer(window))
            speaks = speaks or _SPEAKS in window
            can_profile = can_profile or _PROFILER in window
            tail = window[-_LONGEST:]
    return LinkedJemalloc(tuple(sorted(variables)), speaks, can_profile)
