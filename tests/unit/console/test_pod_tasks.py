# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""fab pod: a manifest in, the profiled one out, and back."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context
from invoke.exceptions import Exit

from ansible_collections.offheap.profiler.console import pod_tasks
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import pod_libraries
from ansible_collections.offheap.profiler.tests.unit.strategies import workloads

WEB = workloads.workload("Deployment", {"spec": {"containers": [{"name": "web", "envFrom": [{"prefix": "X_"}]}]}})


def environment(manifest: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in workloads.pod_of(manifest)["spec"]["containers"][0]["env"]}


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "web.json"
    file.write_text(json.dumps(WEB))
    container = ["web=/usr/bin/web"]
    pod_tasks.pod.body(Context(), str(file), container, lg_prof_sample=17, dump_seconds=60, workers=True)
    told = capsys.readouterr()
    got = environment(json.loads(told.out))
    assert "lg_prof_sample:17" in got["MALLOC_CONF"]
    assert (got["OFFHEAP_DUMP_SECONDS"], got["OFFHEAP_CHILDREN"]) == ("60", "1")
    assert "has variables from elsewhere" in told.err
    mounted = workloads.pod_of(json.loads(told.out))["spec"]["volumes"][0]
    assert mounted["configMap"]["name"] == pod_libraries.name_of("amd64")
    monkeypatch.setattr("sys.stdin", io.StringIO(told.out))
    pod_tasks.pod.body(Context(), "-", undo=True)
    assert json.loads(capsys.readouterr().out) == WEB


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "give --container NAME=PROGRAM, or --undo"),
        ({"container": ["web=/x"], "undo": True}, "give --container NAME=PROGRAM, or --undo"),
        ({"container": ["web"]}, "is not the absolute path of the program"),
        ({"container": ["web=/x"], "arch": "mips"}, "there are libraries for amd64 and arm64"),
        ({"container": ["web=/x"], "lg_prof_sample": -1}, "--lg-prof-sample is -1"),
        ({"undo": True}, "we have changed none of it"),
    ],
)
def test_what_cannot_be_done_ends_with_a_message(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    file = tmp_path / "web.json"
    file.write_text(json.dumps(WEB))
    with pytest.raises(Exit, match=reason) as caught:
        pod_tasks.pod.body(Context(), str(file), **options)
    assert caught.value.code == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Exit, match=r"none\.yaml: No such file"):
        pod_tasks.pod.body(Context(), str(tmp_path / "none.yaml"), undo=True)


def test_the_config_map_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def config_map(*asked: object) -> dict[str, Any]:
        return {"asked": [str(one) for one in asked]}

    monkeypatch.setattr(pod_libraries, "config_map", config_map)
    pod_tasks.pod_config.body(Context(), "shop", "arm64", "/cache")
    assert json.loads(capsys.readouterr().out) == {"asked": ["/cache", "arm64", "shop"]}


def test_a_cache_without_libraries_ends_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(Exit, match="jemalloc_method=cross"):
        pod_tasks.pod_config.body(Context(), cache=str(tmp_path))
