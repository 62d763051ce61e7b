# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What Parca and Pyroscope keep, back as files: each profile by itself, of one process, with its time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.progress import Progress
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish import profile_server
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish.profile_server import Server, ServerError
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish.stored_profiles import Query, bring
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.unit.fakes.profile_stores import (
    KIND,
    Parca,
    ProfileServer,
    Pyroscope,
    served,
)

START, END = 1763780400.0, 1763780400.0 + 86400
ONE = f'{KIND}{{job="web", instance="app1:6060"}}'


@pytest.fixture(params=[Parca, Pyroscope])
def store(request: pytest.FixtureRequest) -> Iterator[ProfileServer]:
    """Two processes' profiles, each ten minutes; what the first holds tells when it was taken."""
    with served(request.param) as server:
        for number in range(144):
            taken = START + 600 * number + 7.123456
            for instance in ("app1:6060", "app2:6060"):
                held = {"inflate;serve": 1000 + number, "cache": 5} if instance == "app1:6060" else {"cache": 10**9}
                server.kept.append(({"job": "web", "instance": instance}, taken, held))
        yield server


def _bring(store: ProfileServer, text: str, directory: Path, start: float = START, **server: object) -> list[Path]:
    return bring(Server(store.url, attempts=1, **server), Query(text, start, END), directory, Progress())  # type: ignore[arg-type]


def test_each_profile_is_one_of_those_that_were_kept(store: ProfileServer, tmp_path: Path) -> None:
    files = _bring(store, ONE, tmp_path)
    assert len(files) == 48
    held = []
    for file in files:
        records = detect.parse(unpack.read(file, 1 << 20), str(file), Told())
        number = (file.stat().st_mtime - START) // 600
        assert records.total.bytes == 1005 + number, "one profile by itself, and its own time"
        assert records.time == pytest.approx(START + 600 * number + 7.123, abs=1)
        held.append(number)
    assert (held[0], held[-1]) == (0, 143) and len(set(held)) == 48, "evenly over all of the time"


def test_only_since_then(store: ProfileServer, tmp_path: Path) -> None:
    assert len(_bring(store, ONE, tmp_path, END - 3600)) == 6


def test_several_processes_are_no_series(store: ProfileServer, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="2 series match") as told:
        _bring(store, f'{KIND}{{job="web"}}', tmp_path)
    assert '{instance="app1:6060", job="web"}' in str(told.value) and "Name the labels of one" in str(told.value)
    assert not list(tmp_path.iterdir())


def test_what_is_not_there_is_said_with_what_is(store: ProfileServer, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=rf"no profiles that match memory:heap:bytes.*it has profiles of {KIND}"):
        _bring(store, "memory:heap:bytes", tmp_path)
    with pytest.raises(
        ServerError, match=r'no profiles that match .*instance="app3".* from 2025-11-22 03:00:00 UTC to'
    ):
        _bring(store, f'{KIND}{{instance="app3"}}', tmp_path)
    with pytest.raises(ServerError, match="'frontend' is not a query, such as memory:inuse_space"):
        _bring(store, "frontend", tmp_path)


def test_headers_go_with_each_question(store: ProfileServer, tmp_path: Path) -> None:
    _bring(store, ONE, tmp_path, headers={"Authorization": "Bearer abc"})
    assert len(store.headers) > 48 and {each["Authorization"] for each in store.headers} == {"Bearer abc"}


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, b"no \x1b[2Jtoken", "answered 401 Unauthorized: no .*token"),
        (302, b"", "redirects to nowhere"),
        (200, b"<html>", "does not answer as Parca or Pyroscope do"),
        (200, b"[" * 100_000, "does not answer as Parca or Pyroscope do"),
        (200, b"{}", "has no profiles that match"),
        (200, b'{"series": [{"points": [{"timestamp": "NaN"}], "samples": [{"timestamp": "1e99"}]}]}', "'1e99'|'NaN'"),
    ],
)
def test_a_server_that_answers_anything(
    store: ProfileServer, tmp_path: Path, status: int, body: bytes, told: str
) -> None:
    store.instead = (status, body)
    with pytest.raises(ServerError, match=told) as error:
        _bring(store, ONE, tmp_path)
    assert str(error.value).isprintable()


def test_an_answer_has_a_largest_size(store: ProfileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_server, "_LARGEST_PROFILE", 1 << 10)
    with pytest.raises(ServerError, match=re.escape("answered more than 1.0 KiB")):
        _bring(store, ONE, tmp_path)
