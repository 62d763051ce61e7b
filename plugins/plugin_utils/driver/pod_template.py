# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Brings the profiler into the pod template of a workload of Kubernetes, and takes it out again.

Two volumes are added to the pod, one with the libraries and an empty one for the dumps, and to each container that is
named, their mounts and the variables that a unit's drop-in would set. An annotation of the template holds these
variables, so that the way back finds what is ours, and leaves what somebody has changed since.

Fields by Kubernetes' API reference: PodTemplateSpec v1.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ...module_utils.formats import aids, malloc_conf, preload, unit_name
from ..base.errors import ControllerError

#: the annotation of a template that is profiled: JSON, the variables that were added, by container
ADDED = "offheap.profiler/added"
#: for jemalloc and for the agent, as the role profiled_service has them
OPTIONS: Mapping[str, malloc_conf.Value] = MappingProxyType({"lg_prof_sample": 19})
SETTINGS: Mapping[str, Any] = MappingProxyType(
    {"start": "sampling", "dump_seconds": 600, "dump_growth": 20, "dump_pressure": False}
)

# Where a template lies in each kind of manifest.
_TEMPLATES: Mapping[str, Sequence[str]] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}
# What Kubernetes does not let anybody change.
_SETTLED = ("Pod", "Job")
_LIBRARIES, _SPOOL = "offheap-libraries", "offheap-spool"
_INSTALLED, _SPOOLS = "/opt/offheap", "/var/lib/offheap"
#: the keys of the libraries in their ConfigMap
JEMALLOC, AGENT = "libjemalloc.so.2", "liboffheap.so"
# Twice what the agent keeps (OFFHEAP_KEEP_BYTES): Kubernetes evicts a pod whose volume exceeds its limit.
_SPOOL_LIMIT = 512 << 20
# The agent's ledger of lives takes 31 MiB of it at most (docs/costs.md).
_LITTLE_MEMORY = 128 << 20
_OTHERS = re.compile(r"LD_PRELOAD\Z|LD_AUDIT\Z|(.*_)?MALLOC_CONF\Z|OFFHEAP_")
_SET = re.compile(r"\b(LD_PRELOAD|LD_AUDIT|\w*MALLOC_CONF)=")
_UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_UNITS |= {f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2}))?([mkMGTPE]|[KMGTPE]i)?\Z")


class PodError(ControllerError):
    """The profiler can't be brought into a pod, or out of it. The message says why, and what to do."""


@dataclass(frozen=True)
class Changed:
    """A manifest of its own, and what to know of it."""

    manifest: dict[str, Any]
    warnings: tuple[str, ...]


def containers(manifest: Mapping[str, Any]) -> list[str]:
    """The names of the containers that can be profiled; none if this is no workload. Raises PodError."""
    return list(_long_running(_pod(manifest))) if manifest.get("kind") in _TEMPLATES else []


def is_profiled(manifest: Mapping[str, Any]) -> bool:
    """Whether this is a workload that we have changed. Raises PodError."""
    return manifest.get("kind") in _TEMPLATES and ADDED in _mapping(_mapping(_pod(manifest), "metadata"), "annotations")


def profiled(
    manifest: Mapping[str, Any],
    programs: Mapping[str, str],
    libraries: str,
    architecture: str,
    options: Mapping[str, malloc_conf.Value] = OPTIONS,
    settings: Mapping[str, Any] = SETTINGS,
) -> Changed:
    """The workload with the profiler in the containers that ``programs`` name, each with its program's absolute path.

    ``libraries`` is the name of the ConfigMap that holds the libraries, ``architecture`` Kubernetes' word for theirs.
    ``options`` are jemalloc's, ``settings`` agent_settings of the modules that enable a unit. What was profiled before
    is so no longer, unless it is named again: the same names and settings give the same manifest.

    Raises PodError.
    """
    before = without_profiler(manifest)
    made, warnings = before.manifest, [*before.warnings]
    pod = _pod(made)
    spec = _mapping(pod, "spec")
    there = _long_running(pod)
    _check_workload(made, spec, architecture)
    warnings += _of_workload(made)
    added = {}
    for name, program in programs.items():
        if name not in there:
            others = ", ".join(there) or "none"
            raise PodError(f"{title(made)} has no container {name} that goes on running; it has: {others}")
        if not program.startswith("/") or not program.isprintable():
            raise PodError(
                f"{program!r} is not the absolute path of the program that {name} runs: ask with"
                f" 'kubectl exec POD -c {name} -- readlink /proc/1/exe'"
            )
        container = there[name]
        _check_container(container, made)
        warnings += _of_container(container)
        added[name] = _variables(container, program, options, settings, warnings)
        _extend(container, "env", _env(added[name]))
        _extend(container, "volumeMounts", _mounts(name))
    _extend(
        spec,
        "volumes",
        [
            {"name": _LIBRARIES, "configMap": {"name": libraries}},
            {"name": _SPOOL, "emptyDir": {"sizeLimit": f"{_SPOOL_LIMIT >> 20}Mi"}},
        ],
    )
    metadata = pod["metadata"] = dict(_mapping(pod, "metadata"))
    metadata["annotations"] = {**_mapping(metadata, "annotations"), ADDED: json.dumps(added, sort_keys=True)}
    return Changed(made, tuple(warnings))


def without_profiler(manifest: Mapping[str, Any]) -> Changed:
    """The workload without what ``profiled`` has added, the same if that was nothing.

    What somebody changed meanwhile stays, and a warning names it. A list or mapping that becomes empty is left out,
    which is the same to Kubernetes. Raises PodError.
    """
    made, warnings = copy.deepcopy(dict(manifest)), []
    pod = _pod(made)
    if not is_profiled(made):
        return Changed(made, ())
    annotations = _mapping(_mapping(pod, "metadata"), "annotations")
    added = _read(annotations[ADDED], made)
    for name, container in _all_containers(pod).items():
        ours = _mapping(added, name)
        variables = _list(container, "env")
        kept = [one for one in variables if one not in _env(ours)]
        _keep(container, "env", kept)
        _keep(container, "volumeMounts", _others(container, "volumeMounts"))
        for variable in sorted({str(one.get("name")) for one in kept} & set(ours)):
            warnings.append(f"container {name}: somebody has changed {variable} since, so it stays: is it still right?")
    spec = _mapping(pod, "spec")
    _keep(spec, "volumes", _others(spec, "volumes"))
    del annotations[ADDED]
    if not annotations:
        del pod["metadata"]["annotations"]
    if not pod["metadata"]:
        del pod["metadata"]
    return Changed(made, tuple(warnings))


def _variables(
    container: Mapping[str, Any],
    program: str,
    options: Mapping[str, malloc_conf.Value],
    settings: Mapping[str, Any],
    warnings: list[str],
) -> dict[str, str]:
    name = str(container["name"])
    # Nobody knows which kernel the pod gets.
    wanted = preload.options_of_profiler({**preload.WITHOUT_HUGE_PAGES, **options}, f"{_SPOOLS}/{name}", by_agent=True)
    try:
        conf = malloc_conf.render(wanted)
    except malloc_conf.MallocConfError as error:
        raise PodError(str(error)) from error
    ours = {
        preload.LD_PRELOAD: f"{_INSTALLED}/{JEMALLOC}:{_INSTALLED}/{AGENT}",
        preload.MALLOC_CONF: conf,
        preload.UNSET: "1",
        preload.SOCKETS: "-",  # nobody could reach it
        **preload.variables_of_agent(unit_name.service(name), program, settings, bool(settings.get("children"))),
    }
    theirs = {str(one.get("name")) for one in _list(container, "env")}
    # No program of this name on the controller is the one in the image.
    for variable, words in aids.additions(aids.detect(program), [], [], "", []).items():
        if variable in theirs:
            warnings.append(f"container {name} sets {variable} itself: add {' '.join(words)} there, for whole stacks")
        else:
            ours[variable] = aids.merge("", words)
    return ours


def _mounts(name: str) -> list[dict[str, Any]]:
    """A directory of its own for each container: their processes may have the same number."""
    return [
        {"name": _LIBRARIES, "mountPath": _INSTALLED, "readOnly": True},
        {"name": _SPOOL, "mountPath": f"{_SPOOLS}/{name}", "subPath": name},
    ]


def _check_workload(manifest: Mapping[str, Any], spec: Mapping[str, Any], architecture: str) -> None:
    owners = [f"{one.get('kind')} {one.get('name')}" for one in _owners(manifest)]
    if owners and manifest["kind"] in _SETTLED:
        raise PodError(f"{title(manifest)} is made by {owners[0]}: name that workload, which makes others like it")
    metadata = _mapping(manifest, "metadata")
    if manifest["kind"] == "Job" and metadata.get("uid") and not _mapping(manifest, "spec").get("manualSelector"):
        raise PodError(
            f"{title(manifest)} is there already, and can't be made again from this: give the file it is from"
        )
    selected = _mapping(spec, "nodeSelector")
    systems = {
        _mapping(spec, "os").get("name"),
        selected.get("kubernetes.io/os"),
        selected.get("beta.kubernetes.io/os"),
    }
    if "windows" in systems:
        raise PodError(f"{title(manifest)} runs on Windows, and the libraries are Linux's")
    wanted = selected.get("kubernetes.io/arch", selected.get("beta.kubernetes.io/arch", architecture))
    if wanted != architecture:
        raise PodError(f"{title(manifest)} runs on {wanted}, and the libraries are for {architecture}: --arch {wanted}")
    if len(_others(spec, "volumes")) < len(_list(spec, "volumes")):
        raise PodError(f"{title(manifest)} has a volume of its own named {_LIBRARIES} or {_SPOOL}: rename it")


def _of_workload(manifest: Mapping[str, Any]) -> list[str]:
    kind = manifest["kind"]
    found = [
        f"{title(manifest)} is made by {one.get('kind')} {one.get('name')}, which may undo this"
        for one in _owners(manifest)
    ]
    if kind in _SETTLED:
        found.append(f"nobody can change a {kind} that is there: use 'kubectl replace --force', which makes it anew")
    if kind in (*_SETTLED, "CronJob"):
        found.append("collect while it runs: once its process has ended, nobody gets at the dumps")
    return found


def _check_container(container: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    name = container["name"]
    taken = [str(one.get("name")) for one in _list(container, "env") if _OTHERS.match(str(one.get("name")))]
    taken += _SET.findall(f"{container.get('command')} {container.get('args')}")
    if taken:
        raise PodError(
            f"container {name} of {title(manifest)} sets {' and '.join(dict.fromkeys(taken))} itself: take that out"
            " while it is profiled"
        )
    places = {one["mountPath"] for one in _mounts(name)}
    for mount in _list(container, "volumeMounts"):
        if str(mount.get("mountPath")).rstrip("/") in places:
            raise PodError(f"container {name} has a volume at {mount['mountPath']}, where ours would be: move it")
    limit = _bytes(_limits(container).get("ephemeral-storage"))
    if limit is not None and limit < _SPOOL_LIMIT:
        raise PodError(
            f"container {name} may use {limit >> 20} MiB of its node's disk (ephemeral-storage), and its dumps up to"
            f" {_SPOOL_LIMIT >> 20} MiB of it: the pod would be evicted. Raise that limit"
        )


def _of_container(container: Mapping[str, Any]) -> list[str]:
    name, found = container["name"], []
    for source in _list(container, "envFrom"):
        where = [
            f"{kind} {_mapping(source, kind).get('name')}" for kind in ("configMapRef", "secretRef") if kind in source
        ]
        found.append(
            f"container {name} has variables from {' and '.join(where) or 'elsewhere'}, which we do not see: ours"
            " replace an LD_PRELOAD or MALLOC_CONF of it"
        )
    limit = _bytes(_limits(container).get("memory"))
    if limit is not None and limit < _LITTLE_MEMORY:
        found.append(
            f"container {name} may use {limit >> 20} MiB of memory, and the agent's ledger may take 31 MiB of it: raise"
            " that limit, or the kernel may kill it"
        )
    return found


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(container, "resources"), "limits")


def _bytes(quantity: object) -> int | None:
    """Bytes of a Quantity such as ``128Mi``, ``1e9`` or ``0.5G``; None if there is none."""
    match = None if quantity is None else _QUANTITY.match(str(quantity))
    return int(float(match[1]) * 10 ** int(match[2] or 0) * _UNITS[match[3] or ""]) if match else None


def title(manifest: Mapping[str, Any]) -> str:
    """Its kind and name, for people."""
    metadata = _mapping(manifest, "metadata")
    return f"{manifest['kind']} {metadata.get('name') or metadata.get('generateName') or 'without a name'}"


def _owners(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _list(_mapping(manifest, "metadata"), "ownerReferences")


def _pod(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The template, inside ``manifest``. Raises PodError."""
    kind = str(manifest.get("kind") or "manifest without a kind")
    if kind not in _TEMPLATES:
        raise PodError(f"a {kind} has no pod template; these have: {', '.join(_TEMPLATES)}")
    found: Any = manifest  # inside it, not a copy
    for key in _TEMPLATES[kind]:
        found = _mapping(found, key)
    if not isinstance(found, dict) or not _list(_mapping(found, "spec"), "containers"):
        raise PodError(f"{title(manifest)} has no containers: is this the whole manifest?")
    return found


def _all_containers(pod: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    spec = _mapping(pod, "spec")
    found = [one for kind in ("containers", "initContainers") for one in _list(spec, kind)]
    return {one["name"]: one for one in found if isinstance(one.get("name"), str)}


def _long_running(pod: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Containers by name, without those that end before the others start."""
    own = {str(one.get("name")) for one in _list(_mapping(pod, "spec"), "containers")}
    return {
        name: one for name, one in _all_containers(pod).items() if name in own or one.get("restartPolicy") == "Always"
    }


def _read(text: object, manifest: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found = json.loads(str(text))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise PodError(
            f"the annotation {ADDED} of {title(manifest)} is not ours: remove it, and what we have added, by hand"
        )
    return found


def _mapping(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What ``parent`` has there, or an empty mapping. Raises PodError if it is something else."""
    found = parent.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise PodError(f"{key} is {type(found).__name__}, and should be a mapping: this is no manifest of Kubernetes")
    return found


def _list(parent: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = parent.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise PodError(f"{key} is no list of mappings: this is no manifest of Kubernetes")
    return found


def _extend(parent: dict[str, Any], key: str, added: Sequence[dict[str, Any]]) -> None:
    parent[key] = [*_list(parent, key), *added]


def _keep(parent: dict[str, Any], key: str, kept: list[dict[str, Any]]) -> None:
    """Only these of the list there, of which nothing is left where that is none; as it was if it has no others."""
    if len(kept) < len(_list(parent, key)):
        parent[key] = kept
        if not kept:
            del parent[key]


def _others(parent: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The volumes, or mounts of such, that are not ours."""
    return [one for one in _list(parent, key) if one.get("name") not in (_LIBRARIES, _SPOOL)]


def _env(variables: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in variables.items()]
