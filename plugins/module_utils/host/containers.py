# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The containers of a host: their control groups, and the names that their engines leave on it. No engine is asked.

A container's control group is called after its id, of 64 hexadecimal digits: ``cri-containerd-ID.scope``,
``crio-ID.scope``, ``docker-ID.scope``, ``libpod-ID.scope``, or just ``ID`` where systemd does not manage the groups.
The kubelet links each container's log as ``/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log``; Docker and Podman keep
the names in files of JSON.

This module is private to the collection.
"""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd

_GROUP = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod)-)?([0-9a-f]{64})(?:\.scope)?\Z")
_LOGS = "var/log/containers"
_LOG = re.compile(r"([^_]+)_([^_]+)_(.+)-([0-9a-f]{64})\.log\Z")
_DOCKER = "var/lib/docker/containers"
_PODMAN = "var/lib/containers/storage/overlay-containers/containers.json"
_LARGEST = 16 << 20
_SHORT = 12  # digits, as engines print an id


def running(root: str = "/") -> dict[str, str]:
    """The control groups of the containers that have any, by name: ``NAMESPACE/POD/CONTAINER`` of Kubernetes, else what
    the engine calls it, else the beginning of its id. Pods' sandboxes, in which no program of anybody's runs, are left
    out."""
    kubelet = _of_kubelet(root)
    others = {**_of_podman(root), **_of_docker(root)}
    found = {}
    for identity, group in _groups():
        if identity in kubelet or "kubepods" not in group:
            found[kubelet.get(identity) or others.get(identity) or identity[:_SHORT]] = group
    return dict(sorted(found.items()))


def _groups() -> list[tuple[str, str]]:
    """Ids and control groups."""
    for root in systemd.CGROUP_ROOTS:
        found = []
        for directory, subdirectories, _files in os.walk(root):
            matches = {name: match for name in subdirectories if (match := _GROUP.match(name))}
            found += [(match[1], os.path.join(directory, name)[len(root) :]) for name, match in matches.items()]
            subdirectories[:] = [name for name in subdirectories if name not in matches]
        if found:
            return found
    return []


def _of_kubelet(root: str) -> dict[str, str]:
    """Names by id."""
    paths = glob.glob(os.path.join(root, _LOGS, "*.log"))
    matches = [match for path in paths if (match := _LOG.match(os.path.basename(path)))]
    return {match[4]: f"{match[2]}/{match[1]}/{match[3]}" for match in matches}


def _of_docker(root: str) -> dict[str, str]:
    found = {}
    for path in glob.glob(os.path.join(root, _DOCKER, "*", "config.v2.json")):
        told = _json(path)
        if isinstance(told, dict) and isinstance(told.get("Name"), str):
            found[os.path.basename(os.path.dirname(path))] = told["Name"].lstrip("/")
    return found


def _of_podman(root: str) -> dict[str, str]:
    told = _json(os.path.join(root, _PODMAN))
    entries = [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    named = [one for one in entries if isinstance(one.get("names"), list) and one["names"]]
    return {str(one.get("id")): str(one["names"][0]) for one in named}


def _json(path: str) -> Any:
    """None if it is not there, or cannot be read."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
