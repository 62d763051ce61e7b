# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Size limits, shared by both ends so that whatever can be collected can be read, and the reverse.

All are in bytes. They are far above usual sizes and bound what a broken or hostile host can cost.

This module is private to the collection.
"""

from __future__ import annotations

#: a heap dump, in a spool, in an archive, and unpacked. Ten million call stacks take about 200 MiB.
LARGEST_DUMP = 256 << 20
#: an executable or a library with its debug information; by default less is fetched (heap_fetch's max_image)
LARGEST_IMAGE = 4 << 30
#: HotSpot writes about 100 bytes for each piece of compiled code; the code cache holds at most some 100,000
LARGEST_PERF_MAP = 256 << 20
#: the lives beside a dump: the agent's table holds 196,608 objects and 16,384 stacks
LARGEST_LIVES = 32 << 20
#: the holders beside a dump: at most 65,536 steps of ways
LARGEST_HOLDERS = 16 << 20
#: all that a unit's spool keeps on a target once its dumps are collected
LARGEST_SPOOL = 256 << 20
#: the text of /proc/<pid>/maps: by default the kernel allows 65,530 mappings, at 250 bytes a line
LARGEST_MAPS = 16 << 20
#: the file that the agent writes beside a dump
LARGEST_SIDECAR = 1 << 20
#: a JSON message between the ends, such as the list of dumps in a host's spools
LARGEST_MESSAGE = 32 << 20
#: a capture's facts
LARGEST_FACTS = 64 << 20
