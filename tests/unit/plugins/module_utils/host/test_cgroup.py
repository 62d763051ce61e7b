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
        memory__pressure="some avg10=0.00 avg60=1.50 avg300=0.10 total=9\nfull avg10=0 avg60=0.25 avg300=0 total=1\n",
    )
    facts = cgroup.read("/a.service")
    assert (facts["current"], facts["limit"], facts["high"], facts["oom_kills"]) == (4096, None, 8192, 2)
    assert facts["pressure"] == {"some": 1.5, "full": 0.25}


def test_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "_UNIFIED", ())
    monkeypatch.setattr(cgroup, "_VERSION_1", str(tmp_path))
    _group(
        tmp_path / "a.service",
        memory__usage_in_bytes="4096\n",
        memory__limit_in_bytes=f"{(1 << 63) - 4096}\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    )
    facts = cgroup.read("/a.service")
    assert (facts["current"], facts["limit"], facts["oom_kills"]) == (4096, None, 1)


@pytest.mark.parametrize("group", ["", "a.service", "/../../etc", "/nowhere.service"])
def test_a_group_that_tells_nothing(group: str) -> None:
    assert set(cgroup.read(group).values()) == {None}
