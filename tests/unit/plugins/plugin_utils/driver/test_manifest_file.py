# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Manifests out of files: what Kubernetes would read, and which workload is meant."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import manifest_file
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.pod_template import ADDED, PodError
from ansible_collections.offheap.profiler.tests.unit.strategies.workloads import workload

SERVICE: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {}}


def named(*containers: str, name: str = "web") -> dict[str, Any]:
    made = workload("Deployment", {"spec": {"containers": [{"name": one} for one in containers]}})
    made["metadata"]["name"] = name
    return made


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22:22", "22:22"),
        ("1:30:00.5", "1:30:00.5"),
        ("2026-11-27", "2026-11-27"),
        ("2026-11-27T03:00:00Z", "2026-11-27T03:00:00Z"),
        ("1.5", 1.5),
        ("0644", 0o644),
        ("true", True),
        ('"1"', "1"),
    ],
)
def test_a_word_is_what_it_is_to_kubernetes(text: str, value: object) -> None:
    assert manifest_file.read(f"kind: X\nvalue: {text}\n") == [{"kind": "X", "value": value}]


def test_documents_and_lists_are_all_found() -> None:
    inner = {"kind": "List", "items": [SERVICE, {"kind": "List", "items": [named("a")]}]}
    text = f"---\n{json.dumps(SERVICE)}\n---\n# nothing\n---\n{json.dumps(inner)}\n"
    assert manifest_file.read(text) == [SERVICE, SERVICE, named("a")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no manifest in it"),
        ("# only this\n", "there is no manifest in it"),
        ("a: [", "is no YAML or JSON"),
        ("- a\n", "is no manifest"),
        ("[" * 5000, "is no YAML or JSON"),
        ("kind: !!python/object:os.system {}\n", "is no YAML or JSON"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PodError, match=reason):
        manifest_file.read(text)


def test_the_workload_that_has_the_containers_is_meant() -> None:
    manifests = [SERVICE, named("web", "proxy"), named("db", name="db")]
    assert manifest_file.to_profile(manifests, ["proxy"]) is manifests[1]
    assert manifest_file.to_profile(manifests, ["db"]) is manifests[2]
    assert manifest_file.to_profile(manifests[1:2], ["db"]) is manifests[1], "of a single one, its refusal says more"


@pytest.mark.parametrize(
    ("manifests", "reason"),
    [
        ([named("web"), named("web", name="api")], "several have such a container: Deployment web, Deployment api"),
        ([SERVICE, named("a", "b")], r"nothing here has containers web; there are: Deployment web \(a, b\)"),
        ([SERVICE, SERVICE], "there are: no workloads"),
    ],
)
def test_a_container_that_nothing_or_more_than_one_has(manifests: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(PodError, match=reason):
        manifest_file.to_profile(manifests, ["web"])


def test_only_what_we_have_changed_is_changed_back() -> None:
    ours = named("web")
    ours["spec"]["template"]["metadata"]["annotations"] = {ADDED: "{}"}
    assert manifest_file.profiled_already([SERVICE, named("web"), ours]) == [ours]
    with pytest.raises(PodError, match="we have changed none of it"):
        manifest_file.profiled_already([SERVICE, named("web")])
