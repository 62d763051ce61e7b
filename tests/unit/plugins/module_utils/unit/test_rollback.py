# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""In which order units are rolled back. What becomes of each of them is tried on booted hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import dependents, health, rollback, service
from ansible_collections.offheap.profiler.tests.unit.fakes import units

# What a restart of each unit takes along.
_ALONG = {"a": [], "b": [], "proxy": ["a"], "c": [], "d": []}


class _Unit:
    """A unit that runs under the profiler until it is restarted."""

    spares_processes = False
    is_running = True
    main_pid = 1
    start_obstacle = ""

    def __init__(self, name: str) -> None:
        self.name, self.names = name, [name]
        self.text = {"Type": "simple", "LoadState": "loaded", "ActiveState": "active", "KillMode": "control-group"}

    def pids(self) -> list[int]:
        return []


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done: a restart by the unit's name, and the names that were watched together."""
    steps: list[str] = []

    def come_up(name: str, *_arguments: object) -> str:
        steps.append(f"restart {name}")
        if name == "c":
            raise health.Unhealthy("c did not come up")
        return name

    def outlast(watches: Sequence[str]) -> Iterator[tuple[str, OffheapError | None]]:
        if watches:
            steps.append(f"watch {' '.join(watches)}")
        for watch in watches:
            yield watch, health.Unhealthy("b did not stay up") if watch == "b" else None

    def watch(unit: str, *_arguments: Any) -> str:
        return unit

    monkeypatch.setattr(service, "load", _Unit)
    monkeypatch.setattr(service, "pids_under_us", lambda *_arguments: [])
    monkeypatch.setattr(systemd, "systemctl", lambda *_arguments: "")
    monkeypatch.setattr(rollback, "take_out", lambda _changes, _unit: [1])
    monkeypatch.setattr(rollback, "_remember_restart", lambda _name: None)
    monkeypatch.setattr(rollback, "_remove_sockets", lambda _changes, name: steps.append(f"done {name}"))
    monkeypatch.setattr(dependents, "running", lambda unit: _ALONG[unit.name])
    monkeypatch.setattr(dependents, "bring_back", lambda _names: [])
    monkeypatch.setattr(dependents, "stopped", lambda _names: [])
    monkeypatch.setattr(health, "ends_again_and_again", lambda _unit: False)
    monkeypatch.setattr(health, "come_up", come_up)
    monkeypatch.setattr(health, "outlast", outlast)
    monkeypatch.setattr(health, "Watch", watch)
    return steps


def test_units_are_watched_together_but_for_one_that_takes_others_along(done: list[str]) -> None:
    found = rollback.roll_back_each(list(_ALONG), False, False, 3, 120)
    assert done == [
        *("restart a", "restart b", "watch a b", "done a"),
        *("restart proxy", "watch proxy", "done proxy"),
        *("restart c", "restart d", "watch d", "done d"),
    ]
    assert [one.unit for one in found] == list(_ALONG)
    assert {one.unit: one.problem for one in found if one.problem} == {
        "b": "b did not stay up",
        "c": "c did not come up",
    }


def test_in_check_mode_nothing_is_restarted(done: list[str]) -> None:
    found = rollback.roll_back_each(["a", "proxy"], True, False, 3, 120)
    assert [one.restarted for one in found] == [True, True]
    assert done == ["done a", "done proxy"]


def test_one_that_was_well_before_is_not_said_to_end_as_it_did(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What made it end again and again was the profiler."""
    monkeypatch.setattr(health, "ends_again_and_again", lambda _unit: True)
    monkeypatch.setattr(rollback, "_is_out", lambda _name: True)
    assert rollback.roll_back_each(["c"], False, False, 3, 120)[0].problem == ""
    assert rollback.put_back("c", 3, 120, ["a"]).problem == "c did not come up"


def test_what_was_a_unit_has_become_an_alias_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an update of the package does that. systemd reads the drop-ins of aliases, too."""
    for name in ("PERSISTENT", "UNTIL_REBOOT", "SPOOLS", "SOCKETS", "TAKING"):
        monkeypatch.setattr(places, name, str(tmp_path / name))
    Path(places.sockets_of("mysql.service")).mkdir(parents=True)
    old = Path(places.drop_ins_of("mysql.service", False))
    old.mkdir(parents=True)
    (old / "90-offheap.conf").write_text('# offheap: {"made_directory": true}\n[Service]\n')
    systemctl = units.Systemctl(tmp_path, monkeypatch)
    systemctl.states(
        units.shown("/bin/true", Id="mariadb.service", lists={"Names": ["mariadb.service", "mysql.service"]})
    )
    assert rollback.units() == ["mysql.service"]
    (done,) = rollback.roll_back_each(rollback.units(), False, False, 0, 5)
    assert (done.sentence(), done.changes.any) == ("mariadb.service is rolled back, and needed no restart", True)
    assert rollback.units() == [] and not old.exists()
    assert "--no-pager daemon-reload" in systemctl.calls
