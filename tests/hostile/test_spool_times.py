# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps that their owner has given a time which no dump has: they are brought, like all others of their host."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import PackRequest, SpooledDump
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import steps
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import plan

UNIT = "web.service"
NAMES = ("jeprof.12.0.i0.heap", "jeprof.12.1.i1.heap")
DUMP = b"""heap_v2/1
  t*: 1: 5 [0: 0]
@ 0x10
  t*: 1: 5 [0: 0]

MAPPED_LIBRARIES:
00000000-00001000 r-xp 00000000 08:01 1 /app
7ff000000000-7ff000001000 r-xp 00000000 00:00 0 [vdso]
"""


@pytest.mark.parametrize("seconds", [-(10**9), 10**10], ids=["1938", "2286"])
def test_a_time_before_or_after_all_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    monkeypatch.setattr(places, "SPOOLS", str(tmp_path))
    tmp_path.chmod(0o755)
    (tmp_path / UNIT).mkdir()
    for name, time in zip(NAMES, (seconds, 1700000000), strict=True):
        (tmp_path / UNIT / name).write_bytes(DUMP)
        os.utime(tmp_path / UNIT / name, (time, time))
    found = steps.find({"units": [], "max_dump": 1 << 20, "max_captures": 10}).to_json()
    listing = plan.read_listing(json.loads(json.dumps({**found, "free": 1 << 60})), "app1", 1 << 20, 1 << 20)
    assert [capture.facts.dump.name for capture in listing.captures] == list(NAMES)
    batch = plan.Batch(dumps={name: capture for name, capture in zip(NAMES, listing.captures, strict=True)})
    request = json.loads(json.dumps(batch.request()))
    assert steps.stream_captures(PackRequest.from_json(request), lambda _data: None)["skipped"] == {}
    marked = steps.mark([SpooledDump.from_json(dump) for dump in request["dumps"]], delete=True)
    assert (marked["collected"], marked["problems"]) == (2, [])
