# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples made from a dump's text, with names that tests choose."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.offheap.profiler.plugins.plugin_utils.model import samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import Location
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2

BUILD_ID = "00112233445566778899aabbccddeeff00112233"
DUMP = b"""\
heap_v2/524288
  t*: 7: 700000 [9: 900000]
  t0: 4: 400000 [4: 400000] main
  t1: 3: 300000 [5: 500000] worker <1>
@ 0x401011 0x401021 0x7f0000001031
  t*: 5: 500000 [6: 600000]
  t0: 3: 300000 [3: 300000]
  t1: 2: 200000 [3: 300000]
@ 0x401011 0x401041 0x900001
  t*: 2: 200000 [3: 300000]
  t1: 1: 100000 [2: 200000]

MAPPED_LIBRARIES:
00400000-00401000 r--p 00000000 fe:00 11 /srv/app
00401000-00402000 r-xp 00001000 fe:00 11 /srv/app
00900000-00901000 rwxp 00000000 00:00 0
7f0000000000-7f0000002000 r-xp 00000000 fe:00 12 /usr/lib/libz.so.1
"""
_FRAMES = {
    0x401011: (
        Frame("allocate;it", "app", Kind.INLINED, 0, "/src/a.c", 7),
        Frame("grow", "app", Kind.NATIVE, 0, "/src/a.c", 40),
    ),
    0x401021: (Frame("fill", "app", Kind.NATIVE, 0, "/src/b.c", 9),),
    0x401041: (Frame("</script>", "app"),),
    0x7F0000001031: (Frame("", "libz.so.1", Kind.NATIVE, 0x1030),),
    0x900001: (Frame("", "", Kind.JIT),),
}


def samples_of(data: bytes = DUMP) -> samples.Samples:
    """The samples of a dump over the programs above."""

    def resolve(locations: Sequence[Location]) -> Sequence[Sequence[Frame]]:
        return [_FRAMES[location.address] for location in locations]

    build_ids = {"/srv/app": BUILD_ID, "/usr/lib/libz.so.1": BUILD_ID[::-1]}
    return samples.named(samples.located(heap_v2.parse(data, "x.heap"), build_ids), resolve)
