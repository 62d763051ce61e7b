# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The profiler into a pod template and out again: what is added, what is refused, and that nothing else changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import malloc_conf
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import pod_template
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.pod_template import PodError
from ansible_collections.offheap.profiler.tests.gates.files import ROOT
from ansible_collections.offheap.profiler.tests.unit.strategies import workloads

JAVA = "/opt/java/openjdk/bin/java"
WEB = {"spec": {"containers": [{"name": "web", "image": "registry.example.org/web:1"}]}}


def profiled(manifest: dict[str, Any], program: str = "/usr/sbin/web", name: str = "web") -> pod_template.Changed:
    return pod_template.profiled(manifest, {name: program}, "offheap-amd64-01234567", "amd64")


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {**copy.deepcopy(WEB["spec"]), **spec}}


def with_web(**fields: Any) -> dict[str, Any]:
    return workloads.workload("Deployment", {"spec": {"containers": [{**WEB["spec"]["containers"][0], **fields}]}})


def variables(manifest: dict[str, Any], number: int = 0) -> dict[str, str]:
    return {one["name"]: one["value"] for one in workloads.pod_of(manifest)["spec"]["containers"][number]["env"]}


@given(st.data(), workloads.pods(), st.sampled_from(workloads.KINDS))
def test_there_and_back_is_the_identity(data: st.DataObject, template: dict[str, Any], kind: str) -> None:
    manifest = workloads.workload(kind, template)
    before = copy.deepcopy(manifest)
    names = pod_template.containers(manifest)
    chosen = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    programs = {name: data.draw(st.sampled_from([JAVA, "/usr/bin/python3", "/app/server"])) for name in chosen}
    there = pod_template.profiled(manifest, programs, "offheap-amd64-01234567", "amd64").manifest
    assert manifest == before, "what is given does not change"
    assert not pod_template.is_profiled(manifest) and pod_template.is_profiled(there)
    assert pod_template.without_profiler(there) == pod_template.Changed(before, ())
    assert pod_template.profiled(there, programs, "offheap-amd64-01234567", "amd64").manifest == there
    assert pod_template.without_profiler(before).manifest == before


@given(workloads.pods(), st.sampled_from(workloads.KINDS))
def test_nothing_that_was_there_moves(template: dict[str, Any], kind: str) -> None:
    manifest = workloads.workload(kind, template)
    name = pod_template.containers(manifest)[0]
    before, after = (
        workloads.pod_of(one)["spec"] for one in (manifest, profiled(manifest, "/app/server", name).manifest)
    )
    assert before.get("volumes", []) == after["volumes"][: len(before.get("volumes", []))]
    for old, new in zip(before["containers"], after["containers"], strict=True):
        if old["name"] != name:
            assert old == new
        for key in ("env", "volumeMounts"):
            assert old.get(key, []) == new.get(key, [])[: len(old.get(key, []))]
        assert {key: old[key] for key in old if key not in ("env", "volumeMounts")} == {
            key: new[key] for key in new if key not in ("env", "volumeMounts")
        }


def test_what_a_container_gets() -> None:
    changed = profiled(workloads.workload("Deployment", WEB))
    spec = workloads.pod_of(changed.manifest)["spec"]
    assert changed.warnings == ()
    got = variables(changed.manifest)
    conf = malloc_conf.parse(got.pop("MALLOC_CONF"))
    assert conf == {
        "prof": "true",
        "prof_active": "false",
        "prof_prefix": "/var/lib/offheap/web/jeprof",
        "lg_prof_sample": "19",
        "thp": "never",
        "metadata_thp": "disabled",
    }
    assert got == {
        "LD_PRELOAD": "/opt/offheap/libjemalloc.so.2:/opt/offheap/liboffheap.so",
        "OFFHEAP_UNIT": "web.service",
        "OFFHEAP_EXECUTABLE": "/usr/sbin/web",
        "OFFHEAP_START": "sampling",
        "OFFHEAP_UNWINDER": "hybrid",
        "OFFHEAP_DUMP_SECONDS": "600",
        "OFFHEAP_DUMP_GROWTH": "20",
        "OFFHEAP_SOCKET_DIR": "-",
        "OFFHEAP_UNSET": "1",
    }
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "offheap-libraries", "mountPath": "/opt/offheap", "readOnly": True},
        {"name": "offheap-spool", "mountPath": "/var/lib/offheap/web", "subPath": "web"},
    ]
    assert spec["volumes"] == [
        {"name": "offheap-libraries", "configMap": {"name": "offheap-amd64-01234567"}},
        {"name": "offheap-spool", "emptyDir": {"sizeLimit": "512Mi"}},
    ]


def test_the_defaults_are_those_of_the_role() -> None:
    role = ROOT / "roles" / "profiled_service"
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
    own = yaml.safe_load((role / "vars" / "main.yml").read_text())
    assert own["_profiled_service_with_agent"] == pod_template.OPTIONS
    assert {name: defaults[f"profiled_service_{name}"] for name in own["_profiled_service_settings"]} == (
        pod_template.SETTINGS
    )


def test_a_jvm_shows_its_frames_unless_it_has_options_of_its_own() -> None:
    got = variables(profiled(with_web(), JAVA).manifest)
    assert got["JAVA_TOOL_OPTIONS"] == "-XX:+PreserveFramePointer -XX:NativeMemoryTracking=summary"
    theirs = {"name": "JAVA_TOOL_OPTIONS", "value": "-Xmx1g"}
    changed = profiled(with_web(env=[theirs]), JAVA)
    assert variables(changed.manifest)["JAVA_TOOL_OPTIONS"] == "-Xmx1g"
    assert "add -XX:+PreserveFramePointer" in changed.warnings[0]


def test_two_containers_have_dumps_of_their_own() -> None:
    manifest = workloads.workload("Pod", pod(containers=[{"name": "a"}, {"name": "b"}]))
    made = pod_template.profiled(manifest, {"a": "/a", "b": "/b"}, "libraries", "amd64").manifest
    paths = [
        mount["mountPath"]
        for container in workloads.pod_of(made)["spec"]["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] == "offheap-spool"
    ]
    assert paths == ["/var/lib/offheap/a", "/var/lib/offheap/b"]
    assert "/var/lib/offheap/b/jeprof" in variables(made, 1)["MALLOC_CONF"]


def test_what_somebody_did_meanwhile_stays() -> None:
    manifest = with_web(env=[{"name": "PORT", "value": "1"}])
    there = profiled(manifest).manifest
    template = workloads.pod_of(there)
    template["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "2026-11-27T12:00:00Z"
    container = template["spec"]["containers"][0]
    container["image"] = "registry.example.org/web:2"
    container["env"].insert(0, {"name": "LEVEL", "value": "debug"})
    container["env"][1]["value"] = "2"
    # What a server fills in.
    template["spec"]["volumes"][0]["configMap"]["defaultMode"] = 420
    template["spec"]["volumes"].append({"name": "cache", "emptyDir": {}})
    template["spec"]["containers"].append({"name": "proxy", "image": "registry.example.org/proxy:1"})
    back = pod_template.without_profiler(there)
    wanted = with_web(
        image="registry.example.org/web:2",
        env=[{"name": "LEVEL", "value": "debug"}, {"name": "PORT", "value": "2"}],
    )
    expected = workloads.pod_of(wanted)
    expected["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "2026-11-27T12:00:00Z"}
    expected["spec"]["volumes"] = [{"name": "cache", "emptyDir": {}}]
    expected["spec"]["containers"].append({"name": "proxy", "image": "registry.example.org/proxy:1"})
    assert back == pod_template.Changed(wanted, ())


def test_one_of_our_variables_that_somebody_has_changed_stays_and_is_told() -> None:
    there = profiled(with_web()).manifest
    environment = workloads.pod_of(there)["spec"]["containers"][0]["env"]
    next(one for one in environment if one["name"] == "LD_PRELOAD")["value"] = "/mine.so"
    back = pod_template.without_profiler(there)
    assert variables(back.manifest) == {"LD_PRELOAD": "/mine.so"}
    assert [warning for warning in back.warnings if "changed LD_PRELOAD since" in warning]
    with pytest.raises(PodError, match="sets LD_PRELOAD itself"):
        profiled(there)


def test_other_containers_and_settings_take_the_place_of_those_before() -> None:
    manifest = workloads.workload("StatefulSet", pod(containers=[{"name": "a"}, {"name": "b"}]))
    there = profiled(manifest, "/a", "a").manifest
    again = pod_template.profiled(there, {"b": "/b"}, "libraries", "amd64", {"lg_prof_sample": 17}).manifest
    assert again == pod_template.profiled(manifest, {"b": "/b"}, "libraries", "amd64", {"lg_prof_sample": 17}).manifest


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"env": [{"name": "LD_PRELOAD", "value": "/x.so"}]}, "sets LD_PRELOAD itself"),
        ({"env": [{"name": "LD_PRELOAD", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}, "sets LD_PRELOAD itself"),
        ({"env": [{"name": "MALLOC_CONF", "value": "narenas:1"}]}, "sets MALLOC_CONF itself"),
        ({"env": [{"name": "_RJEM_MALLOC_CONF", "value": "narenas:1"}]}, "sets _RJEM_MALLOC_CONF itself"),
        ({"env": [{"name": "LD_AUDIT", "value": "/x.so"}]}, "sets LD_AUDIT itself"),
        ({"env": [{"name": "OFFHEAP_START", "value": "dormant"}]}, "sets OFFHEAP_START itself"),
        ({"command": ["sh", "-c", "export LD_PRELOAD=/x.so; exec web"]}, "sets LD_PRELOAD itself"),
        ({"args": ["env", "_RJEM_MALLOC_CONF=prof:true", "web"]}, "sets _RJEM_MALLOC_CONF itself"),
        ({"volumeMounts": [{"name": "x", "mountPath": "/opt/offheap/"}]}, "has a volume at /opt/offheap/"),
        ({"resources": {"limits": {"ephemeral-storage": "256Mi"}}}, "the pod would be evicted"),
    ],
)
def test_containers_that_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(PodError, match=reason):
        profiled(with_web(**fields))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"os": {"name": "windows"}}, "runs on Windows"),
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, "runs on Windows"),
        ({"nodeSelector": {"kubernetes.io/arch": "arm64"}}, "--arch arm64"),
        ({"volumes": [{"name": "offheap-spool", "emptyDir": {}}]}, "rename it"),
        ({"containers": [{"name": "other"}]}, "has no container web that goes on running; it has: other"),
        ({"containers": [{"name": "x"}], "initContainers": [{"name": "web"}]}, "has no container web"),
        ({"containers": "web"}, "containers is no list"),
        ({"containers": [{"image": "web"}]}, "has no container web that goes on running; it has: none"),
        ({"containers": []}, "has no containers"),
        ({"volumes": ["data"]}, "volumes is no list of mappings"),
        ({"nodeSelector": "linux"}, "nodeSelector is str"),
    ],
)
def test_pods_that_are_refused(spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(PodError, match=reason):
        profiled(workloads.workload("DaemonSet", pod(**spec)))


@pytest.mark.parametrize(
    ("kind", "more", "reason"),
    [
        ("Pod", {"ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d"}]}, "is made by ReplicaSet web-5d"),
        ("Job", {"ownerReferences": [{"kind": "CronJob", "name": "nightly"}]}, "is made by CronJob nightly"),
        ("Job", {"uid": "0c1e"}, "give the file it is from"),
    ],
)
def test_what_something_else_has_made_is_refused(kind: str, more: dict[str, Any], reason: str) -> None:
    manifest = workloads.workload(kind, WEB)
    manifest["metadata"].update(more)
    with pytest.raises(PodError, match=reason):
        profiled(manifest)


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ({}, "a manifest without a kind has no pod template"),
        ({"kind": "ReplicaSet"}, "a ReplicaSet has no pod template; these have: Deployment, "),
        ({"kind": "Deployment", "spec": None}, "has no containers"),
        ({"kind": "Deployment", "spec": "x"}, "spec is str"),
    ],
)
def test_what_is_no_workload_is_refused(manifest: dict[str, Any], reason: str) -> None:
    for change in (profiled, pod_template.without_profiler):
        with pytest.raises(PodError, match=reason):
            change(manifest)


def test_a_sidecar_can_be_profiled() -> None:
    manifest = workloads.workload("Deployment", pod(initContainers=[{"name": "proxy", "restartPolicy": "Always"}]))
    assert pod_template.containers(manifest) == ["web", "proxy"]
    made = profiled(manifest, "/usr/local/bin/envoy", "proxy").manifest
    assert "env" in workloads.pod_of(made)["spec"]["initContainers"][0]


@pytest.mark.parametrize("program", ["", "java", "./java", "/usr/bin/java\n"])
def test_a_program_is_named_by_its_path(program: str) -> None:
    with pytest.raises(PodError, match="readlink /proc/1/exe"):
        profiled(with_web(), program)


@pytest.mark.parametrize(
    ("limit", "little"),
    [
        *((limit, True) for limit in ("64Mi", "100M", "1e8", "134217727", "0.1Gi", "100000000000m")),
        *((limit, False) for limit in ("128Mi", "1Gi", "1e9", 134217728, "1E", "plenty")),
    ],
)
def test_little_memory_is_told(limit: object, little: bool) -> None:
    warnings = profiled(with_web(resources={"limits": {"memory": limit}})).warnings
    assert any("the kernel may kill it" in warning for warning in warnings) == little


def test_variables_that_cannot_be_seen_are_told() -> None:
    source = {"secretRef": {"name": "web-secrets"}}
    assert "variables from secretRef web-secrets" in profiled(with_web(envFrom=[source])).warnings[0]


def test_what_cannot_be_changed_in_place_is_told() -> None:
    found = {kind: " ".join(profiled(workloads.workload(kind, WEB)).warnings) for kind in workloads.KINDS}
    assert {kind for kind, told in found.items() if "replace --force" in told} == {"Job", "Pod"}
    assert {kind for kind, told in found.items() if "collect while it runs" in told} == {"Job", "Pod", "CronJob"}


def test_an_operator_s_workload_is_told() -> None:
    manifest = workloads.workload("StatefulSet", WEB)
    manifest["metadata"]["ownerReferences"] = [{"kind": "Prometheus", "name": "k8s"}]
    assert "is made by Prometheus k8s, which may undo this" in profiled(manifest).warnings[0]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"web": 1}'])
def test_an_annotation_that_is_not_ours_is_refused(text: str) -> None:
    manifest = with_web()
    workloads.pod_of(manifest)["metadata"]["annotations"] = {pod_template.ADDED: text}
    with pytest.raises(PodError, match=r"is not ours|web is int"):
        pod_template.without_profiler(manifest)


def test_an_option_that_nobody_can_write() -> None:
    with pytest.raises(PodError, match="must not contain a comma"):
        pod_template.profiled(with_web(), {"web": "/x"}, "libraries", "amd64", {"lg_prof_sample": "1,2"})
