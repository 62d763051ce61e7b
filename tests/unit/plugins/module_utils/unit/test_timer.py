# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The timer that takes profiles: what it is called, and that nothing is left of it when it is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit import timer
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("web.service", "offheap-take-web"),
        ("worker@one.service", "offheap-take-worker\\x40one"),
        ("a-b\\x2dc.service", "offheap-take-a\\x2db\\x5cx2dc"),
    ],
)
def test_each_unit_has_its_own(unit: str, name: str) -> None:
    assert timer.name_of(unit) == name


@pytest.mark.parametrize(
    ("state", "calls"),
    [
        ("active", ["stop -- offheap-take-web.timer", "stop -- offheap-take-web.service"]),
        ("failed", ["reset-failed -- offheap-take-web.service"]),
        ("inactive", []),
    ],
)
def test_nothing_of_it_is_left(
    systemctl: Systemctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, calls: list[str]
) -> None:
    monkeypatch.setattr(places, "TAKING", str(tmp_path))
    (tmp_path / "web.service").mkdir()
    systemctl.states(shown(ActiveState=state))
    foretold = Changes(check_mode=True)
    timer.stop(foretold, "web.service")
    assert foretold.any and systemctl.calls == [] and list(tmp_path.glob("web.service"))
    timer.stop(Changes(check_mode=False), "web.service")
    assert systemctl.calls == [f"--no-pager {call}" for call in calls]
    assert not list(tmp_path.glob("web.service"))
    again = Changes(check_mode=False)
    timer.stop(again, "web.service")
    assert not again.any
