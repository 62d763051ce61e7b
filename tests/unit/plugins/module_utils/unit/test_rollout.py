# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""In what order the units of a host are restarted and watched, and what a failure means for the others.

The units are simulated: the ways that they really fail are tried on booted hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import first_dump
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import (
    dependents,
    enabling,
    health,
    own_jemalloc,
    rollback,
    rollout,
    service,
)
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.tests.unit.fakes import units

PARAMETERS: dict[str, Any] = {
    "mode": "profile",
    "allocator": "jemalloc",
    "arena_max": 0,
    "library": "/opt/offheap/jemalloc/1/lib/libjemalloc.so.2",
    "agent": "/opt/offheap/agent/1/liboffheap.so",
    "start_timeout": 10,
    "healthy_seconds": 0,
    "best_effort": False,
}
WITHOUT_VARIABLES = SimpleNamespace(injection=SimpleNamespace(library="", environment={}))
OUTCOMES = {
    "starts": "did not stay healthy with the drop-in",
    "later": "did not stay healthy with the drop-in",
    "dumps": "ran well with the drop-in, but cannot be profiled",
}
Fails = dict[str, str]


class Host:
    """A host on which units of some names refuse, or fail while they start, dump, or are asked by their users."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails: Fails = {}
        self.unchanged: set[str] = set()
        self.controller_leaves_after = 99
        self.dependents: dict[str, list[str]] = {}
        self.ran: dict[str, list[str]] = {}

    def load(self, name: str) -> service.Service:
        crashes_at = {"later": f"restart {name}", "unwatched": "restart c"}.get(self.fails.get(name, ""))
        state = "failed" if crashes_at in self.events else "active"
        if self.fails.get(name) == "starts" and any(name in event.split()[1:] for event in self.events):
            state = "failed"
        if f"put back {name}" in self.events:
            state = "active"
        return units.unit(Id=name, ActiveState=state, MainPID="1")

    def prepare(self, parameters: dict[str, Any], unit: service.Service, _check_mode: bool) -> SimpleNamespace:
        if self.fails.get(unit.name) == "refuses":
            raise Refusal("static-binary", "it is statically linked")
        if self.fails.get(unit.name) == "unreadable":
            raise systemd.SystemdError("the unit file cannot be read")
        if self.fails.get(unit.name) == "has a bug":
            raise StopIteration
        return WITHOUT_VARIABLES

    def write(self, changes: Changes, unit: service.Service, _wanted: object) -> None:
        if unit.name not in self.unchanged:
            changes.do(lambda: self.events.append(f"write {unit.name}"))

    def restart(self, names: Sequence[str], _timeout: int) -> None:
        self.events.append(f"restart {' '.join(names)}")
        for name in names:
            if self.fails.get(name) == "starts":
                raise health.Unhealthy(f"{name} did not start")

    def bring_back(self, names: Sequence[str]) -> list[str]:
        """Units that are down for good have it in their names."""
        return [name for name in names if name.startswith("down")]

    def put_back(self, name: str, _seconds: int, _timeout: int, ran: list[str]) -> rollback.RolledBack:
        self.ran[name] = ran
        self.events.append(f"put back {name}")
        problem = "its unit file is gone" if self.fails.get(name) == "starts" and "gone" in self.fails else ""
        return rollback.RolledBack(name, Changes(False), True, problem, not problem)

    def see_dump(self, unit: service.Service, best_effort: bool) -> tuple[list[str], str]:
        self.events.append(f"dump {unit.name}")
        if self.fails.get(unit.name) == "dumps":
            if not best_effort:
                raise health.NoDump(f"no dump of {unit.name} can be had")
            return [], "its agent does not answer"
        return [f"/var/lib/offheap/{unit.name}/1.heap"], ""

    def check(self, parameters: dict[str, Any]) -> None:
        self.events.append("check")
        fails_after = parameters.get("health_command") == "false" and any("restart" in event for event in self.events)
        if fails_after or parameters.get("health_command") == "never":
            raise health.Unhealthy("the health command failed")

    def goes_on(self) -> bool:
        return sum(event.startswith("restart") for event in self.events) < self.controller_leaves_after


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    fake = Host()
    monkeypatch.setattr(health, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(service, "load", fake.load)
    monkeypatch.setattr(enabling, "prepare", fake.prepare)
    monkeypatch.setattr(enabling, "warnings", lambda _unit, _wanted: [])
    monkeypatch.setattr(enabling, "write", fake.write)
    monkeypatch.setattr(enabling, "restart_needed", lambda unit, _wanted: unit.name not in fake.unchanged)
    monkeypatch.setattr(health, "restart", fake.restart)
    monkeypatch.setattr(dependents, "running", lambda unit: fake.dependents.get(unit.name, []))
    monkeypatch.setattr(dependents, "bring_back", fake.bring_back)
    monkeypatch.setattr(rollback, "take_out", lambda _changes, unit: fake.events.append(f"take out {unit.name}"))
    monkeypatch.setattr(service, "maps_file", lambda _pid, _path: True)
    monkeypatch.setattr(rollback, "put_back", fake.put_back)
    monkeypatch.setattr(systemd, "journal", lambda *_which: ["the journal"])
    monkeypatch.setattr(systemd, "unmet_condition", lambda unit: fake.fails.get(unit, "").partition("unmet: ")[2])
    return fake


@pytest.fixture
def enable(host: Host) -> Callable[..., dict[str, rollout.Enabled]]:
    def enable(*names: str, check_mode: bool = False, **parameters: Any) -> dict[str, rollout.Enabled]:
        wanted = [rollout.Enabled(name, {**PARAMETERS, **parameters}, Changes(check_mode)) for name in names]
        rollout.enable(
            wanted, rollout.Watchers(host.see_dump, first_dump.sentence, host.check, host.goes_on), check_mode
        )
        return {one.unit: one for one in wanted}

    return enable


Enable = Callable[..., dict[str, rollout.Enabled]]


def test_the_first_is_watched_to_its_end_and_the_others_together(host: Host, enable: Enable) -> None:
    done = enable("a", "b", "c")
    assert host.events == [
        *("check", "write a", "restart a", "dump a", "check"),
        *("check", "write b", "restart b", "check", "write c", "restart c", "dump b", "dump c", "check", "check"),
    ] or host.events == [
        *("check", "write a", "restart a", "dump a", "check"),
        *("check", "write b", "restart b", "check", "write c", "restart c", "dump b", "check", "dump c", "check"),
    ]
    assert all(one.restarted and one.changes.any and not one.problem for one in done.values())
    assert done["b"].dumps == ["/var/lib/offheap/b/1.heap"]


def test_a_unit_that_needs_no_restart_is_not_the_first(host: Host, enable: Enable) -> None:
    host.unchanged = {"a"}
    done = enable("a", "b", "c")
    assert not done["a"].restarted and not done["a"].changes.any
    assert host.events.index("dump b") < host.events.index("restart c")


def test_nothing_happens_in_check_mode(host: Host, enable: Enable) -> None:
    host.fails = {"b": "refuses"}
    done = enable("a", "b", "c", check_mode=True)
    assert host.events == ["check", "check"]
    assert [name for name, one in done.items() if one.restarted and one.changes.any] == ["a", "c"]
    assert done["b"].refusal == "static-binary"


def test_a_refused_unit_does_not_keep_the_others(host: Host, enable: Enable) -> None:
    host.fails = {"a": "refuses"}
    done = enable("a", "b")
    assert done["a"].problem == "a is unchanged: it is statically linked"
    assert done["b"].restarted and not done["b"].problem
    assert "write a" not in host.events


@pytest.mark.parametrize("way", ["starts", "later", "dumps"])
def test_a_unit_that_fails_is_put_back_and_the_next_ones_are_tried_alone(host: Host, enable: Enable, way: str) -> None:
    """Until one is well: what breaks every service must not break many at once."""
    host.fails = {"a": way, "b": way}
    done = enable("a", "b", "c", "d", "e")
    begun = host.events.index
    assert begun("put back a") < begun("write b") < begun("put back b") < begun("write c") < begun("dump c")
    assert begun("dump c") < begun("write d") < begun("write e") < begun("dump d")
    said = done["a"].problem
    assert said.startswith(f"a {OUTCOMES[way]}. It was rolled back and runs as before.")
    assert said.endswith("Its journal ends with:\nthe journal")
    assert [name for name, one in done.items() if one.problem] == ["a", "b"]


def test_nine_of_ten_are_profiled_if_the_third_crashes_at_its_start(host: Host, enable: Enable) -> None:
    host.fails = {"c": "starts"}
    done = enable(*"abcdefghij")
    assert [name for name, one in done.items() if one.problem] == ["c"]
    assert [name for name, one in done.items() if one.dumps] == list("abdefghij")


def test_units_that_restart_one_another_are_one(host: Host, enable: Enable) -> None:
    host.dependents = {"b": ["d"], "d": ["e"]}
    done = enable("a", "b", "c", "d", "e")
    assert host.events.index("write e") < host.events.index("restart b d e")
    assert [event for event in host.events if event.startswith("restart")] == [
        "restart a",
        "restart b d e",
        "restart c",
    ]
    assert not any(one.problem for one in done.values())


@pytest.mark.parametrize("way", ["starts", "dumps"])
def test_units_that_restart_one_another_are_put_back_as_one(host: Host, enable: Enable, way: str) -> None:
    host.dependents = {"b": ["c"], "c": ["other.socket"]}
    host.fails = {"c": way}
    done = enable("a", "b", "c")
    taken_out = [host.events.index(f"take out {name}") for name in "bc"]
    put_back = [host.events.index(f"put back {name}") for name in "bc"]
    assert max(taken_out) < min(put_back) and host.ran["b"] == host.ran["c"] == ["c", "other.socket"]
    assert done["b"].problem.startswith("b restarts together with c, which failed. It was rolled back and runs as")
    assert done["c"].problem.startswith(f"c {OUTCOMES[way]}. It was rolled back")
    assert not done["a"].problem


def test_what_a_restart_took_along_has_to_run_again(host: Host, enable: Enable) -> None:
    host.dependents = {"a": ["down.service"], "b": ["fine.service"]}
    done = enable("a", "b")
    assert "down.service ran before and went down with a: look at 'systemctl status" in done["a"].problem
    assert "put back a" in host.events and host.ran["a"] == ["down.service"]
    assert not done["b"].problem and done["b"].dependents == ["fine.service"]


def test_a_unit_whose_process_ends_meanwhile_is_looked_at_again(
    host: Host, enable: Enable, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def prepare(_parameters: dict[str, Any], unit: service.Service, _check_mode: bool) -> SimpleNamespace:
        tries.append(unit.name)
        if unit.name == "b" or len(tries) == 1:
            raise procfs.ProcessGone(4675)
        return WITHOUT_VARIABLES

    monkeypatch.setattr(enabling, "prepare", prepare)
    done = enable("a", "b")
    assert not done["a"].problem and done["b"].refusal == "already-failing"


def test_the_failure_of_one_of_many_ends_no_other_watch(host: Host, enable: Enable) -> None:
    host.fails = {"c": "dumps"}
    done = enable("a", "b", "c", "d")
    assert [name for name, one in done.items() if one.problem] == ["c"]
    assert {"dump b", "dump d", "put back c"} <= set(host.events)


@pytest.mark.parametrize("agent", ["", PARAMETERS["agent"]])
def test_a_unit_whose_time_is_over_before_anybody_looks_is_looked_at(host: Host, enable: Enable, agent: str) -> None:
    """While the units behind it are restarted, nobody watches it."""
    host.fails = {"b": "unwatched"}
    done = enable("a", "b", "c", agent=agent)
    assert [name for name, one in done.items() if one.problem] == ["b"]
    assert "put back b" in host.events


def test_a_bug_at_one_ends_no_other_watch(host: Host, enable: Enable) -> None:
    host.fails = {"b": "dumps", "c": "has a bug"}
    with pytest.raises(StopIteration):
        enable("a", "b", "c")
    assert "put back b" in host.events


def test_a_check_that_fails_counts_like_a_crash(host: Host, enable: Enable) -> None:
    assert "the health command failed" in enable("a", health_command="false")["a"].problem
    assert host.events[-1] == "put back a"


def test_a_check_that_fails_already_leaves_the_unit_as_it_is(host: Host, enable: Enable) -> None:
    done = enable("a", health_command="never")["a"]
    assert (done.refusal, done.restarted) == ("not-well", False)
    assert "a is unchanged: the health command failed, before anything was touched" in done.problem
    assert host.events == ["check"]


def test_a_unit_that_could_not_start_again_is_not_restarted(host: Host, enable: Enable) -> None:
    """Nor would it start without the drop-in."""
    host.fails = {"a": "unmet: its ConditionPathExists=/run/lost does not hold"}
    done = enable("a", "b")
    assert (done["a"].refusal, done["a"].restarted, done["b"].problem) == ("would-not-start", False, "")
    assert "systemd could not start it again: its ConditionPathExists=/run/lost does not hold" in done["a"].problem
    assert host.events == ["check", "write b", "restart b", "dump b", "check"]
    host.unchanged = {"a"}
    assert not enable("a")["a"].problem, "that one needs no restart"


def test_a_unit_that_is_profiled_already_is_not_asked_before(host: Host, enable: Enable) -> None:
    host.unchanged = {"a"}
    assert not enable("a", health_command="never")["a"].problem


def test_a_unit_that_cannot_be_put_back_is_told(host: Host, enable: Enable) -> None:
    host.fails = {"a": "starts", "gone": ""}
    assert "a is not rolled back: its unit file is gone." in enable("a")["a"].problem


def test_what_cannot_be_read_is_unchanged(host: Host, enable: Enable) -> None:
    host.fails = {"a": "unreadable"}
    done = enable("a", "b")
    assert done["a"].problem == "the unit file cannot be read" and "write a" not in host.events
    assert not done["b"].problem


def test_a_unit_without_a_dump_may_stay(host: Host, enable: Enable) -> None:
    host.fails = {"a": "dumps"}
    done = enable("a", best_effort=True)
    assert not done["a"].problem and done["a"].unseen == "its agent does not answer"
    assert done["a"].warnings == [
        "a is left under the profiler, but no dump of it can be had: its agent does not answer"
    ]


def test_nothing_is_begun_once_the_controller_is_gone(host: Host, enable: Enable) -> None:
    host.controller_leaves_after = 1
    done = enable("a", "b")
    assert "restart b" not in host.events and "write b" not in host.events
    assert done["b"].problem == "b is unchanged: the controller has gone away."
    assert not done["a"].problem, "what was begun is seen to its end"


def test_no_dump_is_asked_for_without_an_agent(host: Host, enable: Enable) -> None:
    enable("a", agent="")
    enable("b", mode="swap")
    assert not any(event.startswith("dump") for event in host.events)


def test_the_own_jemalloc_of_a_program_is_seen_to_listen(
    host: Host, enable: Enable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def see(unit: service.Service, environment: dict[str, str]) -> None:
        host.events.append(f"see {unit.name}")
        if unit.name == "b":
            raise health.Unhealthy("its jemalloc does not know what it was told")

    wanted = SimpleNamespace(injection=SimpleNamespace(library="", environment={"MALLOC_CONF": "prof:true"}))
    monkeypatch.setattr(enabling, "prepare", lambda *_arguments: wanted)
    monkeypatch.setattr(own_jemalloc, "see", see)
    done = enable("a", "b", mode="own")
    assert not any(event.startswith("dump") for event in host.events)
    assert not done["a"].problem and done["a"].mapped is None
    assert "put back b" in host.events and "does not know what it was told" in done["b"].problem
