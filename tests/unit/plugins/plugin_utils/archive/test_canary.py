# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One run goes first, and the others wait for its canary, with nothing in common but a bucket."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import rollout_canary
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import canary, far_archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.canary import Rollout, RolloutError
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.object_store import ObjectStore
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
from ansible_collections.offheap.profiler.tests.unit.fakes import s3
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive.test_far_archive import (
    add,
    there_once,
)


@pytest.fixture
def address(s3_store: s3.Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(canary, "_LOOK", 0.02)
    return f"{s3_store.bucket()}/fleet"


def begun(address: str, name: str = "frontend-1") -> Rollout:
    """A rollout whose canary is app1."""
    first = Rollout(address, name)
    assert first.go_first(["app1"], "AWX job 7")
    return first


def test_of_runs_that_begin_at_once_one_goes_first(address: str) -> None:
    runs = [Rollout(address, "frontend-1") for _run in range(8)]
    with ThreadPoolExecutor(len(runs)) as pool:
        first = list(pool.map(lambda one: one.go_first(["app1"], "this run"), runs))
    assert sorted(first) == [False] * 7 + [True]


def test_the_others_go_on_once_the_canary_is_well(address: str) -> None:
    first, told = begun(address), list[str]()

    def tell(text: str) -> None:
        told.append(text)
        first.tell(True)

    other = Rollout(address, "frontend-1")
    assert not other.go_first(["app5", "app6"], "AWX job 8")
    other.wait(60, tell)
    assert told == ["rollout frontend-1: waiting for its canary, app1 of AWX job 7 (0 s)"]
    other.wait(0, told.append)
    assert len(told) == 1, "whoever comes later does not wait"


def test_what_was_told_first_stays(address: str) -> None:
    first = begun(address)
    first.tell(False)
    first.tell(True)
    with pytest.raises(RolloutError, match="has stopped: its canary, app1 of AWX job 7, is not well"):
        Rollout(address, "frontend-1").wait(60, print)


def test_no_word_of_the_canary(address: str) -> None:
    begun(address)
    told: list[str] = []
    with pytest.raises(RolloutError, match=r"no word of its canary, app1 of AWX job 7\. .* was killed"):
        Rollout(address, "frontend-1").wait(0.1, told.append)
    assert len(told) == 1, "once a minute"


def test_rollouts_do_not_know_each_other(address: str) -> None:
    begun(address).tell(False)
    for name in ("frontend-2", "../frontend-1", "frontend/1"):
        begun(address, name).tell(True)
        Rollout(address, name).wait(0, print)
    written = {name for name in ObjectStore(address).files() if name.startswith("rollouts/")}
    assert len(written) == 8 and {name.count("/") for name in written} == {2}, "a name is one directory"


def test_a_name_of_an_earlier_rollout_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as then:
        then.setattr(time, "time", lambda: 1_700_000_000.0)
        begun(address).tell(True)
    with pytest.raises(RolloutError, match="belongs to a rollout that AWX job 7 began on 2023-11-14: set"):
        Rollout(address, "frontend-1").go_first(["app1"], "AWX job 9")


def test_a_request_whose_answer_was_lost(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create = ObjectStore.create

    def sent_twice(self: ObjectStore, name: str, content: bytes) -> bool:
        create(self, name, content)
        return create(self, name, content)

    monkeypatch.setattr(ObjectStore, "create", sent_twice)
    assert begun(address)
    assert not Rollout(address, "frontend-1").go_first(["app2"], "AWX job 8")


@pytest.mark.parametrize("file", [canary.CANARY, canary.OUTCOME])
def test_a_damaged_marker_stops(address: str, file: str) -> None:
    begun(address).tell(True)
    store, later = ObjectStore(address), Rollout(address, "frontend-1")
    store.remove([f"rollouts/frontend-1/{canary.OUTCOME}"] if file == canary.CANARY else [])
    for content in (b"", b"{", b"[]", b"{}", b"x" * (1 << 17), b"[" * 60_000, b"9" * 5000):
        store.put(f"rollouts/frontend-1/{file}", content)
        with pytest.raises(ControllerError, match=r"is damaged|is larger than|no word"):
            later.wait(0, print)


def test_a_time_that_no_calendar_has_stops(address: str) -> None:
    store, later = ObjectStore(address), Rollout(address, "frontend-1")
    for began in ("1e999", "NaN", "-1", "9" * 400, "true", "1e15"):
        marker = f'{{"hosts": "app1", "run": "AWX job 7", "time": {began}, "token": "x"}}'
        store.put(f"rollouts/frontend-1/{canary.CANARY}", marker.encode())
        with pytest.raises(RolloutError, match="is damaged"):
            later.go_first(["app1"], "AWX job 9")


def test_an_archive_lies_beside_it(address: str, tmp_path: Path) -> None:
    begun(address).tell(True)
    archive = far_archive.created(address)
    assert add(archive, tmp_path, 0)
    assert len(archive.captures()) == 1
    there_once(address, [0])


def run(address: str, check: bool = False, **options: Any) -> dict[str, Any]:
    return run_action(rollout_canary, check, archive=address, rollout="frontend-1", **options)


def test_the_action(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not run(address, check=True, hosts=["app1"])["first"]
    assert not run(address, hosts=[])["first"], "a run without hosts holds up nobody"
    assert not far_archive.created(address, check_mode=True).units() and ObjectStore(address).files() == {}
    told = run(address, hosts=["app1"])
    assert (told["first"], told["hosts"], told["changed"]) == (True, ["app1"], False)
    with pytest.raises(AnsibleActionFail, match="there is no word of its canary, app1 of the run on "):
        run(address, hosts=["app2"], timeout="1")
    assert "waiting for its canary, app1" in capsys.readouterr().out
    run(address, hosts=["app1"], outcome="well")
    assert not run(address, hosts=["app2"])["first"]


def test_a_directory_is_no_place_to_meet(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match=r"cannot meet in .*: set offheap_archive to an address"):
        run(str(tmp_path), hosts=["app1"])
