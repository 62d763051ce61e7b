# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import heap_import, leak_assert
from ansible_collections.offheap.profiler.tests.unit.fakes import profile_stores
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action

MIB = 1 << 20


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four profiles of a leak of a MiB an hour."""
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / f"{hour}.folded" for hour in range(4)]
    for hour, path in enumerate(files):
        path.write_text(f"main;inflate {(9 + hour) * MIB}\n")
    return files


def _import(src: list[Path], check: bool = False, **more: Any) -> dict[str, Any]:
    more |= {"source_measure": "live", "source_unit": "bytes", "source_interval": "1"}
    names = [str(path) for path in src]
    return run_action(heap_import, check, src=names, archive="archive", unit="web", host="app1", **more)


def test_what_is_imported_is_judged(profiles: list[Path]) -> None:
    for hour, path in enumerate(profiles):
        result = _import([path], time=f"2026-11-22T0{hour}:00:00")
        (one,) = result["captures"]
        assert (result["changed"], one["source"], one["measure"], one["time_from"]) == (
            True,
            "collapsed",
            "live",
            "option",
        )
        assert one["time"] == 1795305600 + 3600 * hour
    assert not _import(profiles[:1], time="1795305600")["changed"], "the same moment, said in another way"
    verdict = run_action(leak_assert, False, archive="archive")
    assert verdict["failed"] and verdict["msg"].startswith("web.service: inflate ← main grows by 24.0 MiB/day")


def test_check_mode_foretells_it(profiles: list[Path]) -> None:
    foretold = _import(profiles, check=True)
    assert foretold["changed"] and not Path("archive").exists()
    assert foretold["captures"] == _import(profiles)["captures"]


def test_a_time_that_is_none(profiles: list[Path]) -> None:
    with pytest.raises(AnsibleActionFail, match="'yesterday' is not a time: write it like 2026-11-22T03:00:00"):
        _import(profiles[:1], time="yesterday")


@pytest.mark.parametrize("handler", [profile_stores.Parca, profile_stores.Pyroscope])
def test_what_a_server_keeps_is_judged(handler: type[profile_stores.Handler]) -> None:
    asked: dict[str, Any] = {
        "query": profile_stores.KIND + '{instance="app1:6060"}',
        "archive": "archive",
        "unit": "web",
        "host": "app1",
        "source_interval": "1",
    }
    begun = time.time() - 80_000
    with profile_stores.served(handler) as server:
        for hour in range(20):
            server.kept.append(({"instance": "app1:6060"}, begun + 3600 * hour, {"inflate;main": (9 + hour) * MIB}))
        foretold = run_action(heap_import, True, server=server.url, **asked)
        assert foretold["changed"] and not Path("archive").exists()
        assert run_action(heap_import, False, server=server.url, **asked)["changed"]
        assert not run_action(heap_import, False, server=server.url, **asked)["changed"], "it is there already"
        since = str(begun + 3600 * 18 - 60)
        assert len(run_action(heap_import, True, server=server.url, since=since, **asked)["captures"]) == 2
    verdict = run_action(leak_assert, False, archive="archive")
    assert verdict["failed"] and verdict["msg"].startswith("web.service: inflate ← main grows by 24.")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "one of the following is required: src, server"),
        ({"server": "http://127.0.0.1:1", "src": ["a"], "query": "a:b"}, "mutually exclusive: src|server"),
        ({"server": "http://127.0.0.1:1"}, "parameters are required together: server, query"),
        ({"src": ["a"], "since": "2026-11-22"}, "missing parameter(s) required by 'since': server"),
        ({"server": "parca", "query": "a:b"}, "'parca' is no server's address, such as https://pyroscope.example.org"),
    ],
)
def test_what_does_not_go_together_is_said(more: dict[str, Any], told: str) -> None:
    with pytest.raises(AnsibleActionFail) as error:
        run_action(heap_import, False, archive="archive", unit="web", host="app1", **more)
    assert told in str(error.value)
