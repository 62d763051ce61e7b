# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Workloads of Kubernetes, of each kind and with what others have in their pod templates.

The shapes are those of published manifests; the texts are ours.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

KINDS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod")
_API = {"Job": "batch/v1", "CronJob": "batch/v1", "Pod": "v1"}
_LABELS = {"app": "shop"}


def workload(kind: str, pod: dict[str, Any]) -> dict[str, Any]:
    """A manifest of this kind around a pod template, such as an API server accepts."""
    pod = copy.deepcopy(pod)
    head = {"apiVersion": _API.get(kind, "apps/v1"), "kind": kind}
    named = {"metadata": {"name": "shop", "labels": dict(_LABELS)}}
    if kind == "Pod":
        metadata = {**named["metadata"], **pod.get("metadata", {})}
        return {**head, **pod, "metadata": metadata}
    if kind in ("Job", "CronJob"):
        pod["spec"]["restartPolicy"] = "Never"
        spec = {"template": pod, "backoffLimit": 2}
        if kind == "CronJob":
            spec = {"schedule": "7 3 * * *", "jobTemplate": {"spec": spec}}
        return {**head, **named, "spec": spec}
    pod.setdefault("metadata", {}).setdefault("labels", {}).update(_LABELS)
    more = {"serviceName": "shop"} if kind == "StatefulSet" else {}
    return {**head, **named, "spec": {"selector": {"matchLabels": dict(_LABELS)}, "template": pod, **more}}


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The template inside a manifest."""
    found = manifest
    for key in {"Pod": (), "CronJob": ("spec", "jobTemplate", "spec", "template")}.get(
        manifest["kind"], ("spec", "template")
    ):
        found = found[key]
    return found


_NAMES = st.from_regex(r"[a-z][a-z0-9]{0,7}(-[a-z0-9]{1,6})?", fullmatch=True)
_VARIABLES = st.sampled_from(["PORT", "JAVA_OPTS", "HOST_IP", "GOGC", "DATABASE_URL", "TZ", "POD_NAME"])
_VALUES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"value": st.text("aé$(){}\\\"' %,:", min_size=1, max_size=12)}),
    st.sampled_from(
        [
            {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"valueFrom": {"secretKeyRef": {"name": "shop", "key": "password"}}},
            {"valueFrom": {"configMapKeyRef": {"name": "shop", "key": "level", "optional": True}}},
            {"valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        ]
    ),
)
_SOURCES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"emptyDir": {}},
        {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"configMap": {"name": "shop", "items": [{"key": "conf", "path": "shop.conf"}]}},
        {"secret": {"secretName": "shop-tls", "defaultMode": 256}},
        {"hostPath": {"path": "/var/log", "type": "Directory"}},
        {"persistentVolumeClaim": {"claimName": "data"}},
        {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
    ]
)
_SECURITY = st.sampled_from(
    [
        {"readOnlyRootFilesystem": True, "runAsNonRoot": True, "runAsUser": 10001},
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        {"seccompProfile": {"type": "RuntimeDefault"}},
    ]
)
_LIMITS = st.sampled_from(["64Mi", "1Gi", "500M", "1e9", "2147483648"])


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod template."""
    volumes = [{"name": name, **draw(_SOURCES)} for name in draw(st.lists(_NAMES, max_size=3, unique=True))]
    names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
    made = [draw(_containers(name, [one["name"] for one in volumes])) for name in names]
    first = draw(st.integers(0, len(made) - 1)) if len(made) > 1 else 0
    spec: dict[str, Any] = {"containers": made[first:]}
    if first:
        spec["initContainers"] = [
            {**one, **({"restartPolicy": "Always"} if draw(st.booleans()) else {})} for one in made[:first]
        ]
    if volumes:
        spec["volumes"] = volumes
    if draw(st.booleans()):
        spec["nodeSelector"] = {"kubernetes.io/os": "linux"}
    if draw(st.booleans()):
        spec["securityContext"] = {"fsGroup": 10001, "runAsNonRoot": True, "runAsUser": 10001}
    pod: dict[str, Any] = {"spec": spec}
    if draw(st.booleans()):
        annotations = {"annotations": {"prometheus.io/scrape": "true"}} if draw(st.booleans()) else {}
        pod["metadata"] = {"labels": {"tier": "web"}, **annotations}
    return pod


@st.composite
def _containers(draw: st.DrawFn, name: str, volumes: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "image": f"registry.example.org/{name}:1.2"}
    if variables := draw(st.lists(_VARIABLES, max_size=4, unique=True)):
        made["env"] = [{"name": variable, **draw(_VALUES)} for variable in variables]
    if draw(st.booleans()):
        made["envFrom"] = [{"configMapRef": {"name": "shop-env"}}]
    mounted = [name for name in volumes if draw(st.booleans())]
    if mounted:
        made["volumeMounts"] = [{"name": one, "mountPath": f"/mnt/{one}", "readOnly": True} for one in mounted]
    if draw(st.booleans()):
        made["securityContext"] = draw(_SECURITY)
    if draw(st.booleans()):
        made["resources"] = {"limits": {"memory": draw(_LIMITS)}, "requests": {"cpu": "100m"}}
    if draw(st.booleans()):
        made["args"] = ["--listen=:8080", "--pid-file=$(POD_NAME)"]
    return made
