# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a restart takes along, of simulated units; booted hosts have it in tests/integration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import dependents
from ansible_collections.offheap.profiler.tests.unit.fakes import units

BASE = units.unit(
    Id="base.service", lists={"RequiredBy": ["needs.service"], "BoundBy": ["idle.service"], "TriggeredBy": ["b.socket"]}
)


class Host:
    """Knows units by their states, and what is bound to or triggers them."""

    def __init__(self) -> None:
        self.states = dict.fromkeys(("base.service", "needs.service", "b.socket", "far.service", "f.timer"), "active")
        self.states["idle.service"] = "inactive"
        self.bound = {"needs.service": "far.service", "far.service": "needs.service base.service"}
        self.triggers = {"far.service": "f.timer"}
        self.broken: set[str] = set()
        self.calls: list[str] = []

    def show_each(self, names: Sequence[str], _properties: Iterable[str]) -> list[dict[str, str]]:
        return [
            {
                "Id": name,
                "ActiveState": self.states[name],
                "BoundBy": self.bound.get(name, ""),
                "TriggeredBy": self.triggers.get(name, ""),
            }
            for name in names
        ]

    def systemctl(self, verb: str, *names: str, timeout: float | None = None) -> str:
        self.calls.append(" ".join((verb, *names[1:])))
        if verb == "start":
            self.states.update(dict.fromkeys(set(names[1:]) - self.broken, "active"))
        raise systemd.SystemdError("as if one had failed")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    fake = Host()
    monkeypatch.setattr(systemd, "show_each", fake.show_each)
    monkeypatch.setattr(systemd, "systemctl", fake.systemctl)
    return fake


def test_all_that_runs_is_named_at_any_distance(host: Host) -> None:
    assert dependents.running(BASE) == ["b.socket", "f.timer", "far.service", "needs.service"]
    assert dependents.running(units.unit()) == [] and host.calls == []


def test_what_went_down_is_started_and_nothing_else(host: Host) -> None:
    ran = dependents.running(BASE)
    assert dependents.bring_back(ran) == [] and host.calls == []
    host.states.update({"far.service": "failed", "b.socket": "inactive"})
    assert dependents.bring_back(ran) == []
    assert host.calls == ["reset-failed b.socket", "reset-failed far.service", "start b.socket far.service"]


def test_what_does_not_come_back_is_named(host: Host) -> None:
    host.states["far.service"] = "failed"
    host.broken = {"far.service"}
    down = dependents.bring_back([*dependents.running(BASE), "far.service"])
    assert down == ["far.service"]
    assert dependents.sentence(down, "base.service") == (
        "far.service ran before and went down with base.service: look at 'systemctl status far.service', and start what"
        " you need"
    )
    assert dependents.sentence([], "base.service") == ""
