# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The ConfigMap of the libraries: what the controller has built, and nothing that is not as everybody has it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import carried_builds
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import pod_libraries
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.pod_template import PodError

FILES = {
    "jemalloc-1-0a-glibc-x86_64-4096": ("1-0a/lib/libjemalloc.so.2", b"\x7fELF jemalloc"),
    "agent-0b-glibc-x86_64-4096": ("0b/liboffheap.so", b"\x7fELF agent"),
}


def packed(cache: Path, build: str, inner: str, content: bytes) -> Path:
    path = cache / f"{build}-cross.tar.gz"
    with tarfile.open(path, "w:gz") as tarball:
        for name, data in (("offheap.json", b"{}"), (inner, content)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tarball.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with both builds, whose sums are those that everybody has."""
    for build, (inner, content) in FILES.items():
        packed(tmp_path, build, inner, content)
    sums = {build: hashlib.sha256(content).hexdigest() for build, (_inner, content) in FILES.items()}
    (tmp_path / "sums.json").write_text(json.dumps(sums))
    monkeypatch.setattr(carried_builds, "_SUMS", tmp_path / "sums.json")
    return tmp_path


def test_it_has_both_under_the_names_that_are_preloaded(cache: Path) -> None:
    made = pod_libraries.config_map(cache, "amd64", "shop")
    found = {name: base64.b64decode(text) for name, text in made["binaryData"].items()}
    assert found == {"libjemalloc.so.2": b"\x7fELF jemalloc", "liboffheap.so": b"\x7fELF agent"}
    assert made["metadata"] == {"name": pod_libraries.name_of("amd64"), "namespace": "shop"}
    assert "namespace" not in pod_libraries.config_map(cache, "amd64")["metadata"]


def test_other_libraries_have_another_name(cache: Path) -> None:
    before = pod_libraries.name_of("amd64")
    sums = json.loads((cache / "sums.json").read_text())
    (cache / "sums.json").write_text(json.dumps({**sums, "agent-0b-glibc-x86_64-4096": "0" * 64}))
    assert pod_libraries.name_of("amd64") != before


def test_arm_s_libraries_run_with_pages_of_each_size(cache: Path) -> None:
    """A manifest does not say which the node has, and the library for 4 KiB ends a program on larger ones."""
    sums = {}
    for name, (inner, content) in FILES.items():
        for page in (4096, 16384, 65536):
            build, of_page = name.replace("x86_64-4096", f"aarch64-{page}"), content + b"%d" % page
            packed(cache, build, inner, of_page)
            sums[build] = hashlib.sha256(of_page).hexdigest()
    (cache / "sums.json").write_text(json.dumps(sums))
    found = pod_libraries.config_map(cache, "arm64")["binaryData"]
    assert base64.b64decode(found["libjemalloc.so.2"]) == b"\x7fELF jemalloc65536"


def test_the_collection_has_builds_for_each_architecture() -> None:
    names = {pod_libraries.name_of(architecture) for architecture in pod_libraries.ARCHITECTURES}
    assert len(names) == len(pod_libraries.ARCHITECTURES)
    with pytest.raises(PodError, match="libraries for amd64 and arm64"):
        pod_libraries.name_of("s390x")


@pytest.mark.parametrize("content", [b"\x7fELF another", b""])
def test_a_library_that_is_not_everybody_s_is_refused(cache: Path, content: bytes) -> None:
    packed(cache, "agent-0b-glibc-x86_64-4096", "0b/liboffheap.so", content)
    with pytest.raises(PodError, match=r"does not hold the liboffheap\.so that everybody else has"):
        pod_libraries.config_map(cache, "amd64")


def test_a_cache_without_it(cache: Path) -> None:
    with pytest.raises(PodError, match=r"there is no jemalloc-1-0a-glibc-x86_64-4096-cross\.tar\.gz in .*--cache"):
        pod_libraries.config_map(cache / "empty", "amd64")


def test_a_tarball_that_is_cut_off(cache: Path) -> None:
    path = cache / "agent-0b-glibc-x86_64-4096-cross.tar.gz"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(PodError, match="cannot be read"):
        pod_libraries.config_map(cache, "amd64")


def test_what_no_config_map_holds(cache: Path) -> None:
    sums = json.loads((cache / "sums.json").read_text())
    for build, (inner, _content) in FILES.items():
        content = bytes(600_000)
        packed(cache, build, inner, content)
        sums[build] = hashlib.sha256(content).hexdigest()
    (cache / "sums.json").write_text(json.dumps(sums))
    with pytest.raises(PodError, match="1200000 bytes, and a ConfigMap holds 1048576"):
        pod_libraries.config_map(cache, "amd64")
