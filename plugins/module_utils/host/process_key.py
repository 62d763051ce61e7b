# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What tells a process from a later one with its number, in a dump as well as in procfs.

This module is private to the collection.
"""

from __future__ import annotations

import hashlib
from typing import Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs


def fingerprint(mappings: Sequence[Mapping]) -> str | None:
    """Eight hex digits that stay the same as long as the process lives and differ after an exec.

    They come from the place of [vdso], which the kernel draws at random at every exec and never moves. (The first
    mapping would not do: in a JVM that is the Java heap, which grows.) Where there is none, the end of [stack].
    None where a listing has neither.
    """
    for mapping in mappings:
        if mapping.path == "[vdso]":
            return hashlib.sha256(mapping.range_name.encode("ascii")).hexdigest()[:8]
    for mapping in mappings:
        if mapping.path == "[stack]":
            return hashlib.sha256(f"{mapping.end:x}".encode("ascii")).hexdigest()[:8]
    return None


def key(pid: int, mappings: Sequence[Mapping]) -> str:
    """The key of a process, as a capture's facts have it."""
    return f"{pid}-{fingerprint(mappings)}"


def is_alive(pid: int, wanted: str, proc: str = "/proc") -> bool:
    """Whether the process of this key runs. Raises ProcfsError, ProcessGone also for a number that nobody has."""
    return key(pid, procfs.mappings(pid, proc)) == wanted
