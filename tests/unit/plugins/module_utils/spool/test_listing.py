# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which dumps of a spool are ready; tests/integration has those of real services."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import listing, provenance
from ansible_collections.offheap.profiler.tests.unit.fakes import units

UNIT = "web.service"
NAME = f"jeprof.0123abcd-5.{os.getpid()}.0.i0.heap"


@pytest.mark.parametrize(
    ("has_agent", "age", "beside", "is_ready"),
    [
        (True, 0, "", False),
        (True, 0, ".json", True),
        (True, 60, "", True),
        (False, 0, "", True),
    ],
)
def test_a_dump_waits_for_what_its_agent_writes_beside_it(
    has_agent: bool, age: int, beside: str, is_ready: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collected without, it would never get its lives: they come behind it, and last the sidecar."""
    monkeypatch.setattr(places, "SOCKETS", str(tmp_path / "sockets"))
    for place in ("spools", "sockets"):
        (tmp_path / place / UNIT).mkdir(parents=True)
    if has_agent:
        (tmp_path / "sockets" / UNIT / f"{os.getpid()}.sock").touch()
    dump = tmp_path / "spools" / UNIT / NAME
    dump.write_bytes(b"heap_v2/524288\nMAPPED_LIBRARIES:\n" + Path("/proc/self/maps").read_bytes())
    os.utime(dump, (time.time() - age,) * 2)
    if beside:
        dump.with_name(dump.name + beside).write_text("{}")
    found = listing.find(str(tmp_path / "spools"), [], 1 << 20, 10, provenance.Examiner())
    assert [one.name for one in found.captures] == [NAME] * is_ready, found.others
    assert [one.reason for one in found.others["writing"]] == (
        [] if is_ready else ["its agent has yet to write what belongs to it"]
    )


def test_a_unit_that_is_named_by_an_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As redis.service, which Debian's redis-server.service is too. What is ours has the unit's own name."""
    units.Systemctl(tmp_path, monkeypatch).states(units.shown("/bin/true", Id=UNIT))
    (tmp_path / "spools" / UNIT).mkdir(parents=True)
    dump = tmp_path / "spools" / UNIT / NAME
    dump.write_bytes(b"heap_v2/524288\nMAPPED_LIBRARIES:\n" + Path("/proc/self/maps").read_bytes())
    os.utime(dump, (time.time() - 60,) * 2)
    for wanted in (["alias"], ["alias.service", UNIT], [UNIT, "alias"]):
        found = listing.find(str(tmp_path / "spools"), wanted, 1 << 20, 10, provenance.Examiner())
        assert ([(one.unit, one.name) for one in found.captures], found.absent) == ([(UNIT, NAME)], [])
