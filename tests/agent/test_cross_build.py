# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the controller builds for other hosts is, to the byte, what the collection says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent import cross_sums

CARRIED: dict[str, str] = json.loads(cross_sums.CARRIED.read_text())
AGENT = cross_sums.ROLE / "files" / "agent"


def test_there_is_a_checksum_for_each_platform_and_for_nothing_else() -> None:
    stems = (cross_sums.library_stem(), cross_sums.agent_stem())
    assert set(CARRIED) == {f"{stem}-{platform}" for stem in stems for platform in cross_sums.TARGETS}


def test_the_agent_is_the_same_wherever_it_is_built(tmp_path: Path) -> None:
    elsewhere = tmp_path / "Büro 2"
    shutil.copytree(AGENT, elsewhere / "agent")
    (elsewhere / "venv").symlink_to(sys.prefix)
    python = str(elsewhere / "venv" / "bin" / "python")
    for platform in ("glibc-x86_64-4096", "glibc-aarch64-4096"):
        carried = CARRIED[f"{cross_sums.agent_stem()}-{platform}"]
        record = cross_sums.built("agent", platform, elsewhere / "agent", tmp_path, carried, python)
        assert cross_sums.sum_of(record) == carried
        with tarfile.open(tmp_path / f"{cross_sums.agent_stem()}-{platform}.tar.gz") as tarball:
            name = cross_sums.agent_stem().partition("-")[2]
            assert tarball.getnames() == [name, f"{name}/liboffheap.so", f"{name}/offheap.json"]


def test_another_agent_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(AGENT, elsewhere)
    with (elsewhere / "clock.c").open("a") as source:
        source.write("int changed(void);\nint changed(void) { return 1; }\n")
    platform = "glibc-x86_64-4096"
    with pytest.raises(subprocess.CalledProcessError) as raised:
        cross_sums.built("agent", platform, elsewhere, tmp_path, CARRIED[f"{cross_sums.agent_stem()}-{platform}"])
    assert "the compiler or the sources were changed" in raised.value.stderr
    assert not list(tmp_path.glob("*.tar.gz*"))


def test_it_needs_nothing_that_an_old_host_lacks(tmp_path: Path) -> None:
    platform = "glibc-x86_64-4096"
    cross_sums.built("agent", platform, AGENT, tmp_path)
    with tarfile.open(tmp_path / f"{cross_sums.agent_stem()}-{platform}.tar.gz") as tarball:
        tarball.extractall(tmp_path, filter="data")
    (library,) = tmp_path.glob("*/liboffheap.so")
    needed = subprocess.run(["readelf", "--version-info", library], capture_output=True, text=True, check=True).stdout
    versions = [word.removeprefix("GLIBC_") for word in needed.split() if word.startswith("GLIBC_")]
    assert versions and max(tuple(map(int, version.split("."))) for version in versions) <= (2, 17)


@pytest.mark.soak_only
@pytest.mark.parametrize("platform", cross_sums.TARGETS)
def test_the_library_is_the_same_wherever_it_is_built(platform: str, tmp_path: Path) -> None:
    carried = CARRIED[f"{cross_sums.library_stem()}-{platform}"]
    record = cross_sums.built("library", platform, cross_sums.patched_source(tmp_path), tmp_path, carried)
    assert cross_sums.sum_of(record) == carried


def test_without_the_compiler_it_says_how_to_get_it(tmp_path: Path) -> None:
    plain = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", plain], check=True)
    command = [plain / "bin" / "python", cross_sums.BUILDER]
    done = subprocess.run(command, input='{"part": "agent"}', capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("-m pip install ziglang==0.17.1\n")
