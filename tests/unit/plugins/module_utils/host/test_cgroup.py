# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup


def _group(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


def test_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_UNIFIED", (str(tmp_path),))
    _group(
        tmp_path / "a.service",
        memory__current="4096\n",
        memory__max="max\n",
        memory__high="8192\n",
        memory__events="low 0\noom 3\noom_kill 2\n",
        memory__stat="anon 1000\nfile 2000\nkernel 300\nkernel_stack 9\nsock 40\nshmem 500\nslab 200\n",
        memory__pressure="some avg10=0.00 avg60=1.50 avg300=0.10 total=9\nfull avg10=0 avg60=0.25 avg300=0 total=1\n",
    )
    facts = cgroup.read("/a.service")
    assert (facts["current"], facts["limit"], facts["high"], facts["oom_kills"]) == (4096, None, 8192, 2)
    assert facts["pressure"] == {"some": 1.5, "full": 0.25}
    named = {"processes": 1000, "files": 1500, "shared-memory": 500, "kernel": 300, "sockets": 40}
    assert facts["parts"] == {**named, "rest": 4096 - sum(named.values())}


def test_an_older_kernel_does_not_add_up_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_UNIFIED", (str(tmp_path),))
    stat = "anon 10\nfile 0\nkernel_stack 1\nslab 20\npercpu 300\nsock 4000\nshmem 0\n"
    _group(tmp_path / "a.service", memory__current="5000\n", memory__stat=stat)
    assert cgroup.read("/a.service")["parts"]["kernel"] == 321


def test_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_UNIFIED", ())
    monkeypatch.setattr(cgroup, "_VERSION_1", str(tmp_path))
    _group(
        tmp_path / "a.service",
        memory__usage_in_bytes="4096\n",
        memory__limit_in_bytes=f"{(1 << 63) - 4096}\n",
        memory__stat="cache 1\nrss 1\ntotal_cache 2000\ntotal_rss 1000\ntotal_shmem 500\n",
        memory__kmem__usage_in_bytes="300\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    )
    facts = cgroup.read("/a.service")
    assert (facts["current"], facts["limit"], facts["oom_kills"]) == (4096, None, 1)
    named = {"processes": 1000, "files": 1500, "shared-memory": 500, "kernel": 300, "sockets": 0}
    assert facts["parts"] == {**named, "rest": 4096 - sum(named.values())}


@pytest.mark.parametrize("group", ["", "a.service", "/../../etc", "/nowhere.service"])
def test_a_group_that_tells_nothing(group: str) -> None:
    assert set(cgroup.read(group).values()) == {None}


@pytest.mark.parametrize("text", ["\n", "some avg60=\n", "some avg60=nan\n", "some avg60=1.2.3\n", "avg60=1\n"])
def test_pressure_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(cgroup, "_UNIFIED", (str(tmp_path),))
    _group(tmp_path / "a.service", memory__current="1\n", memory__pressure=text)
    assert cgroup.read("/a.service")["pressure"] is None


_SLICE, _UNIT = "/app.slice", "/app.slice/a.service"


@pytest.mark.parametrize(
    ("unit", "above", "left"),
    [
        ({"max": "9000", "high": "max"}, {"max": "max", "high": "max"}, 5000),
        ({"max": "9000", "high": "6000"}, {"max": "max", "high": "max"}, 2000),
        ({"max": "9000", "high": "max"}, {"max": "7000", "high": "max"}, 2000),
        ({"max": "max", "high": "max"}, {"max": "max", "high": "6500"}, 1500),
        ({"max": "3000", "high": "max"}, {"max": "max", "high": "max"}, 0),
        ({"max": "max", "high": "max"}, {"max": "max", "high": "max"}, None),
    ],
)
def test_what_is_left_below_the_nearest_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: dict[str, str], above: dict[str, str], left: int | None
) -> None:
    monkeypatch.setattr(cgroup, "_UNIFIED", (str(tmp_path),))
    for group, limits, used in ((_SLICE, above, "6000\n"), (_UNIT, unit, "5000\n")):
        _group(
            tmp_path / group[1:],
            **{f"memory__{name}": f"{text}\n" for name, text in limits.items()},
            memory__current=used,
            memory__stat="anon 4000\nfile 1000\ninactive_file 1000\n",
        )
    assert cgroup.left(_UNIT) == left


def test_what_is_left_in_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_UNIFIED", ())
    monkeypatch.setattr(cgroup, "_VERSION_1", str(tmp_path))
    for group, limit in ((_SLICE, 7000), (_UNIT, (1 << 63) - 4096)):
        _group(
            tmp_path / group[1:],
            memory__usage_in_bytes="5000\n",
            memory__limit_in_bytes=f"{limit}\n",
            memory__stat="inactive_file 10\ntotal_inactive_file 1000\n",
        )
    assert cgroup.left(_UNIT) == 3000


@pytest.mark.parametrize("group", ["", "a.service", "/../../etc", "/nowhere.service", "/"])
def test_a_group_without_a_limit(group: str) -> None:
    assert cgroup.left(group) is None
