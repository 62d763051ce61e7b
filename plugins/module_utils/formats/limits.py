# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How large things may be, for both ends: what is collected can be read, and what is read can be collected.

All are in bytes. They are far above what is usual; they bound what a broken or hostile host can cost.

This module is private to the collection.
"""

from __future__ import annotations

#: a heap dump, in a spool, in an archive, and unpacked. Ten million call stacks of a dump have some 200 MiB.
LARGEST_DUMP = 256 << 20
#: an executable or a library with its debug information; what is fetched by default is less (heap_fetch's max_image)
LARGEST_IMAGE = 4 << 30
#: HotSpot writes about 100 bytes for each piece of compiled code; the code cache holds some 100,000 at the most
LARGEST_PERF_MAP = 256 << 20
#: the text of /proc/<pid>/maps: the kernel allows 65,530 mappings unless told otherwise, at 250 bytes a line
LARGEST_MAPS = 16 << 20
#: the file that the agent leaves beside a dump
LARGEST_SIDECAR = 1 << 20
#: a message in JSON from one end to the other, such as the list of what lies in the spools of a host
LARGEST_MESSAGE = 64 << 20
#: a capture's facts
LARGEST_FACTS = 64 << 20
