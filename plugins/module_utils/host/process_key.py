# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What distinguishes a process from a later one with its pid, both in a dump and in procfs.

This module is private to the collection.
"""

from __future__ import annotations

import hashlib
from typing import Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs


def fingerprint(mappings: Sequence[Mapping]) -> str | None:
    """Eight hex digits that stay the same while the process lives, and change with an exec.

    They come from the address of [vdso], which the kernel chooses at random at every exec and never moves, or else from
    the end of [stack]. (The first mapping would not do: in a JVM it is the Java heap, which grows.) None if a listing
    has neither.
    """
    for mapping in mappings:
        if mapping.path == "[vdso]":
            return hashlib.sha256(mapping.range_name.encode("ascii")).hexdigest()[:8]
    for mapping in mappings:
        if mapping.path == "[stack]":
            return hashlib.sha256(f"{mapping.end:x}".encode("ascii")).hexdigest()[:8]
    return None


def key(pid: int, mappings: Sequence[Mapping]) -> str:
    """The key of a process, as stored in a capture's facts."""
    return f"{pid}-{fingerprint(mappings)}"


def is_alive(pid: int, wanted: str, proc: str = "/proc") -> bool:
    """Whether the process with this key is running. Raises ProcfsError; ProcessGone if no process has the pid."""
    return key(pid, procfs.mappings(pid, proc)) == wanted
