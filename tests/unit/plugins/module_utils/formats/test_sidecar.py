# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The agent's sidecar of a dump: what is kept, and what is refused."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import sidecar
from ansible_collections.offheap.profiler.plugins.module_utils.formats.sidecar import SidecarError

NAME = "jeprof.12.3.m3.heap"
WHOLE: dict[str, Any] = {
    "format": 1,
    "agent": "1.0.0",
    "dump": NAME,
    "size": 1000,
    "time": 1795257517.032,
    "duration": 0.001,
    "reason": "schedule",
    "unit": "frontend.service",
    "pid": 12,
    "pid_namespace": 4026531836,
    "cmdline": ["java"],
    "unwinder": "hybrid",
    "active": True,
    "active_since": 1795257129.034,
    "jemalloc": {
        "version": "5.3.0",
        "malloc_conf": "prof:true",
        "options": {"prof_accum": False, "lg_prof_sample": 16, "lg_prof_interval": -1, "prof_prefix": "/x"},
    },
    "memory": {"rss": 403800064, "allocated": 296260008},
    "reused": ["7f00a0-7f00b0"],
    "others": {"processes": 7, "rss": 9000, "largest": [{"pid": 13, "name": "worker", "rss": 2000, "exe": "/w"}]},
    "images": [{"path": "/usr/bin/java", "build_id": "b3"}],
}


def read(content: bytes, directory: Path) -> dict[str, Any]:
    path = directory / "sidecar"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return sidecar.read(fd, NAME, 1000).to_json()
    finally:
        os.close(fd)


def test_what_is_kept(tmp_path: Path) -> None:
    assert read(json.dumps(WHOLE).encode(), tmp_path) == {
        "version": "1.0.0",
        "duration": 0.001,
        "reason": "schedule",
        "unwinder": "hybrid",
        "active": True,
        "active_since": 1795257129.034,
        "jemalloc": WHOLE["jemalloc"],
        "memory": WHOLE["memory"],
        "others": WHOLE["others"],
        "reused": ["7f00a0-7f00b0"],
        "pid_namespace": 4026531836,
    }


def test_an_agent_of_before(tmp_path: Path) -> None:
    """It does not know the other processes, nor what code lies where other code did."""
    later = ("others", "reused", "pid_namespace")
    found = read(json.dumps({key: value for key, value in WHOLE.items() if key not in later}).encode(), tmp_path)
    assert (found["others"], found["reused"], found["pid_namespace"]) == (None, [], 0)
    kept = sidecar.AgentFacts.from_json({key: value for key, value in found.items() if key not in later})
    assert (kept.others, kept.reused) == (None, []), "as captures of before hold it"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "not of format 1"),
        ({"dump": "jeprof.12.4.m4.heap"}, "another dump"),
        ({"size": 999}, "another dump"),
        ({"pid": 13}, "another dump"),
        ({"memory": {"rss": -1}}, "memory"),
        ({"memory": {"rss": "much"}}, "memory"),
        ({"memory": {"RSS!": 1}}, "memory"),
        ({"memory": {f"k{number}": 1 for number in range(65)}}, "memory"),
        ({"active": 1}, "active"),
        ({"pid_namespace": -1}, "pid_namespace"),
        ({"pid_namespace": "1"}, "pid_namespace"),
        ({"others": []}, "others"),
        ({"reused": "7f00a0-7f00b0"}, "reused"),
        ({"reused": ["7f00a0"]}, "reused"),
        ({"reused": ["7f00a0-7f00b0\n"]}, "reused"),
        ({"reused": ["0-1"] * 65}, "reused"),
        ({"others": {**WHOLE["others"], "processes": -1}}, "others.processes"),
        ({"others": {**WHOLE["others"], "rss": 0.5}}, "others.rss"),
        ({"others": {**WHOLE["others"], "largest": WHOLE["others"]["largest"] * 5}}, "others.largest"),
        ({"others": {**WHOLE["others"], "largest": [{"pid": 13}]}}, "others.largest"),
        ({"others": {**WHOLE["others"], "largest": [{"pid": 13, "name": 5, "rss": 1}]}}, "others.largest"),
        ({"duration": float("nan")}, "duration"),
        ({"unwinder": ["x"]}, "unwinder"),
        ({"jemalloc": None}, "jemalloc"),
        ({"jemalloc": {"options": {"a": []}}}, "jemalloc.options"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match=message):
        read(json.dumps({**WHOLE, **change}).encode(), tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100000, b" " * ((1 << 20) + 1), b"9" * 5000])
def test_what_is_no_sidecar_at_all(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(SidecarError):
        read(content, tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", "\udcff"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted(set(WHOLE) - {"format", "dump", "size", "pid"})


@given(st.sampled_from(FIELDS), JSON)
def test_any_content_is_refused_or_can_be_written(field: str, value: Any) -> None:
    changed = copy.deepcopy(WHOLE)
    changed[field] = value
    fd = os.memfd_create("sidecar")
    try:
        os.write(fd, json.dumps(changed).encode())
        try:
            found = sidecar.read(fd, NAME, 1000)
        except SidecarError:
            return
    finally:
        os.close(fd)
    written = json.dumps(found.to_json(), ensure_ascii=False).encode("utf-8")
    assert sidecar.AgentFacts.from_json(json.loads(written)) == found
