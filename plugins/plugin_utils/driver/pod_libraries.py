# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The ConfigMap that brings our libraries into pods: those that the controller has built, as everybody has them."""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .pod_template import AGENT, JEMALLOC, PodError

#: Kubernetes' names of architectures, and those of our builds
ARCHITECTURES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}
# SHA-256 of what the controller builds, by the name of the build.
_SUMS = Path(__file__).parents[3] / "roles" / "jemalloc" / "files" / "cross_checksums.json"
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
    platform = f"-glibc-{ARCHITECTURES[architecture]}-4096"
    sums = json.loads(_SUMS.read_text(encoding="utf-8"))
    builds = {name.partition("-")[0]: name for name in sums if name.endswith(platform)}
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
            " architecture (enable_profiling with jemalloc_method=cross); --cache names another directory"
        ) from None
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise PodError(f"{path} cannot be read: {error}. Remove it, and have it built again") from error
    if hashlib.sha256(content).hexdigest() != wanted:
        raise PodError(f"{path} does not hold the {file} that everybody else has. Remove it, and have it built again")
    return content
