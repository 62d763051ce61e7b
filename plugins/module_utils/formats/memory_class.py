# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The classes into which a process's memory map is divided, with the names that both ends use.

This module is private to the collection.
"""

from __future__ import annotations

from enum import Enum


class MemoryClass(str, Enum):
    """What a mapping holds. The values are the keys of native_memory_info's ``classes``."""

    JAVA_HEAP = "java-heap"
    CODE_CACHE = "code-cache"
    METASPACE = "metaspace"
    THREAD_STACKS = "thread-stacks"
    MALLOC_HEAP = "malloc-heap"
    GLIBC_ARENAS = "glibc-arenas"
    MALLOC_MMAPPED = "malloc-mmapped"
    OTHER_MALLOC = "other-malloc"
    MAPPED_FILES = "mapped-files"
    SHARED_MEMORY = "shared-memory"
    JIT = "jit"
    UNKNOWN = "unknown"
