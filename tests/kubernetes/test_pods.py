# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Kubernetes' own API server takes each template, the profiled one and the way back, as docs/containers.md has it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import pod_template
from ansible_collections.offheap.profiler.tests.gates.files import ROOT
from ansible_collections.offheap.profiler.tests.kubernetes import cluster as clusters
from ansible_collections.offheap.profiler.tests.kubernetes.cluster import Cluster
from ansible_collections.offheap.profiler.tests.unit.strategies import workloads

pytestmark = pytest.mark.soak_only

LIBRARIES = "offheap-amd64-01234567"
# Of what the controller builds: both libraries together.
SIZE = 712_464


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if clusters.go_version() < clusters.GO:
        pytest.skip(f"no Go {'.'.join(map(str, clusters.GO))} or newer to build Kubernetes with")
    clusters.build()
    with clusters.running(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def named(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["kind"].lower(), manifest["metadata"]["name"]


def settled(manifest: dict[str, Any]) -> Any:
    """What somebody has asked for, without what the server counts and what it gives each Job anew."""
    spec = manifest["spec"] if manifest["kind"] != "Job" else manifest["spec"]["template"]["spec"]
    return spec, workloads.pod_of(manifest)["metadata"].get("annotations")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), workloads.pods(), st.sampled_from(workloads.KINDS))
def test_a_server_takes_it_there_and_back(
    cluster: Cluster, data: st.DataObject, template: dict[str, Any], kind: str
) -> None:
    manifest = workloads.workload(kind, template)
    containers = pod_template.containers(manifest)
    names = data.draw(st.lists(st.sampled_from(containers), min_size=1, unique=True))
    programs = dict.fromkeys(names, "/opt/java/openjdk/bin/java")
    cluster.kubectl("create", "-f", "-", manifest=manifest)
    try:
        before = cluster.get(*named(manifest))
        in_place = kind not in ("Job", "Pod")
        there = pod_template.profiled(before if in_place else manifest, programs, LIBRARIES, "amd64").manifest
        if not in_place:
            refused = cluster.tried("replace", "-f", "-", manifest=there)
            assert refused.returncode and ("immutable" in refused.stderr or "may not change" in refused.stderr)
        force = [] if in_place else ["--force"]
        cluster.kubectl("replace", *force, "-f", "-", manifest=there)
        after = cluster.get(*named(manifest))
        assert pod_template.is_profiled(after) and settled(after) != settled(before)
        back = pod_template.without_profiler(after if in_place else there)
        assert back.warnings == ()
        cluster.kubectl("replace", *force, "-f", "-", manifest=back.manifest)
        assert settled(cluster.get(*named(manifest))) == settled(before)
    finally:
        cluster.kubectl("delete", *named(manifest), "--now")


def fab(*words: str, text: str) -> str:
    command = [str(Path(sys.executable).parent / "fab"), "-r", str(ROOT), *words]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_the_commands_of_the_guide(cluster: Cluster) -> None:
    manifest = workloads.workload("Deployment", {"spec": {"containers": [{"name": "cart", "image": "cart:1"}]}})
    cluster.kubectl("create", "-f", "-", manifest=manifest)
    before = cluster.get(*named(manifest))
    live = cluster.kubectl("get", "deployment", "shop", "-o", "json")
    there = json.loads(fab("pod", "-", "--container", "cart=/usr/bin/java", text=live))
    cluster.kubectl("replace", "-f", "-", manifest=there)
    stale = cluster.tried("replace", "-f", "-", manifest=there)
    assert stale.returncode and "the object has been modified" in stale.stderr
    # Somebody else rolls out a new image meanwhile.
    cluster.kubectl("set", "image", "deployment/shop", "cart=cart:2")
    live = cluster.kubectl("get", "deployment", "shop", "-o", "json")
    cluster.kubectl("replace", "-f", "-", manifest=json.loads(fab("pod", "-", "--undo", text=live)))
    before["spec"]["template"]["spec"]["containers"][0]["image"] = "cart:2"
    assert cluster.get(*named(manifest))["spec"] == before["spec"]


def test_a_config_map_of_this_size_can_be_created_and_not_applied(cluster: Cluster) -> None:
    content = base64.b64encode(os.urandom(SIZE)).decode()
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": LIBRARIES}, "binaryData": {"l": content}}
    refused = cluster.tried("apply", "-f", "-", manifest=made)
    assert refused.returncode and "Too long" in refused.stderr
    cluster.kubectl("create", "-f", "-", manifest=made)
    assert cluster.get("configmap", LIBRARIES)["binaryData"] == {"l": content}
