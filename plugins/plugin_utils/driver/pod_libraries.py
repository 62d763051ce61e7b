# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The ConfigMap that brings our libraries into pods: those that the controller has built, as everybody has them."""

from __future__ import annotations

import base64
import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..base.carried_builds import carried
from .pod_template import AGENT, JEMALLOC, PodError

#: Kubernetes' names of architectures, and the builds for them. One for pages of 64 KiB runs with smaller ones, too, and
#: a manifest does not say which its node has; one for smaller pages ends the program at its start.
ARCHITECTURES: Mapping[str, str] = {"amd64": "glibc-x86_64-4096", "arm64": "glibc-aarch64-65536"}
# Of all data in a ConfigMap (Kubernetes' documentation, "ConfigMaps").
_MOST = 1 << 20


def name_of(architecture: str) -> str:
    """The ConfigMap's name, another one for other libraries. Raises PodError."""
    sums = "".join(sum_ for _file, _build, sum_ in _wanted(architecture))
    return f"offheap-{architecture}-{hashlib.sha256(sums.encode()).hexdigest()[:8]}"


def config_map(cache: Path, architecture: str, namespace: str = "") -> dict[str, Any]:
    """The ConfigMap with the libraries from the role's ``jemalloc_cache``. Raises PodError."""
    files = {file: _library(cache, build, file, sum_) for file, build, sum_ in _wanted(architecture)}
    size = sum(map(len, files.values()))
    if size > _MOST:
        raise PodError(f"the libraries are {size} bytes, and a ConfigMap holds {_MOST}")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name_of(architecture), **({"namespace": namespace} if namespace else {})},
        "immutable": True,
        "binaryData": {file: base64.b64encode(content).decode() for file, content in files.items()},
    }


def _wanted(architecture: str) -> list[tuple[str, str, str]]:
    """(file, the build that it is in, its SHA-256)"""
    if architecture not in ARCHITECTURES:
        raise PodError(f"--arch is {architecture!r}; there are libraries for {' and '.join(ARCHITECTURES)}")
    sums = carried()
    builds = {name.partition("-")[0]: name for name in sums if name.endswith(f"-{ARCHITECTURES[architecture]}")}
    return [(file, builds[part], sums[builds[part]]) for file, part in ((JEMALLOC, "jemalloc"), (AGENT, "agent"))]


def _library(cache: Path, build: str, file: str, wanted: str) -> bytes:
    path = cache / f"{build}-cross.tar.gz"
    content = b""
    try:
        with tarfile.open(path) as tarball:
            for member in tarball:
                if member.isreg() and Path(member.name).name == file and member.size <= _MOST:
                    stream = tarball.extractfile(member)
                    content = stream.read() if stream else b""
    except FileNotFoundError:
        raise PodError(
            f"there is no {path.name} in {cache}: the controller leaves it there when it builds for a host of that"
            " architecture and size of pages (enable_profiling with jemalloc_method=cross), and so does"
            " roles/jemalloc/files/reproduce.py; --cache names another directory"
        ) from None
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise PodError(f"{path} cannot be read: {error}. Remove it, and have it built again") from error
    if hashlib.sha256(content).hexdigest() != wanted:
        raise PodError(f"{path} does not hold the {file} that everybody else has. Remove it, and have it built again")
    return content
