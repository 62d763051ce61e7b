# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Code that a runtime has compiled, as far as it is known without asking the runtime (jit_map.py does).

This module is private to the collection.
"""

from __future__ import annotations

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

#: Bytes. HotSpot writes about 100 for each piece of compiled code; the code cache holds some 100,000 at the most.
MAX_MAP = 256 << 20
#: reasons for no map that are nobody's fault
ENDED = "its process has ended"
NONE = "its runtime has written no perf map"
_ANONYMOUS = ("[anon", "//anon", "/memfd:", "/dev/zero", "/SYSV")


def has_code(mappings: list[procfs.Mapping]) -> bool:
    """Whether there is executable memory that belongs to no file."""
    return any(mapping.executable and (not mapping.path or mapping.path.startswith(_ANONYMOUS)) for mapping in mappings)
