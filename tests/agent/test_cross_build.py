# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the controller builds for other hosts is, to the byte, what the collection says."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import pod_libraries
from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce
from ansible_collections.offheap.profiler.tests.agent import cross_sums

CARRIED: dict[str, str] = json.loads(reproduce.CARRIED.read_text())


def test_there_is_a_checksum_for_each_platform_and_for_nothing_else() -> None:
    stems = (reproduce.library_stem(), reproduce.agent_stem())
    assert set(CARRIED) == {f"{stem}-{platform}" for stem in stems for platform in reproduce.TARGETS}


def _reproduced(tmp_path: Path, *release: Path) -> tuple[int, list[str]]:
    """The status and the words of reproduce.py on a copy of the role, which has another checksum for one platform."""
    elsewhere = tmp_path / "Büro 2"
    shutil.copytree(reproduce.ROLE, elsewhere / "jemalloc", ignore=shutil.ignore_patterns("__pycache__"))
    sums = {name: "0" * 64 if "agent" in name and "aarch64" in name else one for name, one in CARRIED.items()}
    (elsewhere / "jemalloc" / "files" / "cross_checksums.json").write_text(json.dumps(sums))
    (elsewhere / "venv").symlink_to(sys.prefix)
    command = [elsewhere / "venv" / "bin" / "python", elsewhere / "jemalloc" / "files" / "reproduce.py", *release]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": "/tmp"})
    assert not done.stderr
    return done.returncode, [line for line in done.stdout.splitlines() if not line.startswith("this machine gives us")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tarball of the agent for a platform, built once."""
    directory = tmp_path_factory.mktemp("built")

    @functools.cache
    def tarball(platform: str) -> Path:
        name = f"{reproduce.agent_stem()}-{platform}"
        reproduce.built("agent", platform, reproduce.AGENT, directory, CARRIED[name])
        return directory / f"{name}-cross.tar.gz"

    return tarball


@pytest.mark.parametrize("platform", reproduce.TARGETS)
def test_the_agent_has_the_checksum_that_the_collection_carries(built: Callable[[str], Path], platform: str) -> None:
    with tarfile.open(built(platform)) as tarball:
        (library,) = (tarball.extractfile(name) for name in tarball.getnames() if name.endswith(".so"))
        assert library is not None
        found = hashlib.sha256(library.read()).hexdigest()
    assert found == CARRIED[f"{reproduce.agent_stem()}-{platform}"]


@pytest.mark.soak_only
def test_anybody_can_compare_the_agent(tmp_path: Path) -> None:
    status, told_of_all = _reproduced(tmp_path)
    for told, platform in zip(told_of_all, reproduce.TARGETS, strict=False):
        name = f"{reproduce.agent_stem()}-{platform}"
        assert told == f"{name}: {CARRIED[name]} and {CARRIED[name]}"
    wrong = [f"{reproduce.agent_stem()}-glibc-aarch64-4096 should be {'0' * 64}"]
    assert (status, told_of_all[len(reproduce.TARGETS) :]) == (1, wrong)


def test_another_release_is_not_built(tmp_path: Path) -> None:
    (tmp_path / "release").write_bytes(b"x")
    status, (told,) = _reproduced(tmp_path, tmp_path / "release")
    assert status == 1 and told.endswith(f"and the release {reproduce.VERSION} has {reproduce.RELEASE}")


def test_another_agent_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(reproduce.AGENT, elsewhere)
    with (elsewhere / "clock.c").open("a") as source:
        source.write("int changed(void);\nint changed(void) { return 1; }\n")
    platform = "glibc-x86_64-4096"
    with pytest.raises(subprocess.CalledProcessError) as raised:
        reproduce.built("agent", platform, elsewhere, tmp_path, CARRIED[f"{reproduce.agent_stem()}-{platform}"])
    assert "the compiler or the sources were changed" in raised.value.stderr
    assert not list(tmp_path.glob("*.tar.gz*"))


def test_it_needs_nothing_that_an_old_host_lacks(built: Callable[[str], Path], tmp_path: Path) -> None:
    with tarfile.open(built("glibc-x86_64-4096")) as tarball:
        name = reproduce.agent_stem().partition("-")[2]
        assert tarball.getnames() == [name, f"{name}/liboffheap.so", f"{name}/offheap.json"]
        tarball.extractall(tmp_path, filter="data")
    (library,) = tmp_path.glob("*/liboffheap.so")
    needed = subprocess.run(["readelf", "--version-info", library], capture_output=True, text=True, check=True).stdout
    versions = [word.removeprefix("GLIBC_") for word in needed.split() if word.startswith("GLIBC_")]
    assert versions and max(tuple(map(int, version.split("."))) for version in versions) <= (2, 17)


@pytest.mark.soak_only
def test_anybody_can_compare_the_library(tmp_path: Path) -> None:
    _status, told = _reproduced(tmp_path, cross_sums.release())
    for platform in reproduce.TARGETS:
        name = f"{reproduce.library_stem()}-{platform}"
        assert f"{name}: {CARRIED[name]} and {CARRIED[name]}" in told


@pytest.mark.soak_only
def test_who_has_no_such_host_can_leave_a_platform_s_builds_for_pods(tmp_path: Path) -> None:
    reproduce.left(cross_sums.release(), pod_libraries.ARCHITECTURES["arm64"], tmp_path / "cache", tmp_path)
    made = pod_libraries.config_map(tmp_path / "cache", "arm64")
    assert set(made["binaryData"]) == {"libjemalloc.so.2", "liboffheap.so"}


def test_a_platform_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="PLATFORM DIRECTORY"):
        reproduce.main(["jemalloc.tar.bz2", "musl-aarch64-65536", str(tmp_path / "cache")])


def test_without_the_compiler_it_says_how_to_get_it(tmp_path: Path) -> None:
    plain = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", plain], check=True)
    command = [plain / "bin" / "python", reproduce.BUILDER]
    done = subprocess.run(command, input='{"target": "x"}', capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("-m pip install ziglang==0.17.1\n")
