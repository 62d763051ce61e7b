# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What users get: all of the collection, and nothing from its workshop."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept

SHIPPED = {
    "CHANGELOG.md",
    "CHANGELOG.rst",
    "CONTRIBUTING.md",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "changelogs",
    "console",
    "docs",
    "extensions",
    "fabfile.py",
    "meta",
    "playbooks",
    "plugins",
    "roles",
}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tarfile.TarInfo]:
    output = tmp_path_factory.mktemp("tarball")
    subprocess.run(["tests/gates/build.sh", output], cwd=ROOT, check=True, capture_output=True)
    (tarball,) = output.glob("offheap-profiler-*.tar.gz")
    with tarfile.open(tarball) as archive:
        return {member.name: member for member in archive.getmembers()}


def test_nothing_of_the_workshop_is_in_it(members: dict[str, tarfile.TarInfo]) -> None:
    assert {name.split("/")[0] for name in members} - SHIPPED == set()
    assert [name for name in members if "__pycache__" in name or name.endswith((".pyc", ".log", ".heap"))] == []


def test_everything_that_is_used_is_in_it(members: dict[str, tarfile.TarInfo]) -> None:
    wanted = [
        path for path in kept() if path.parts[0] in ("console", "fabfile.py", "meta", "playbooks", "plugins", "roles")
    ]
    assert [str(path) for path in wanted if str(path) not in members] == []


def test_every_playbook_is_there_under_a_name_with_dashes(members: dict[str, tarfile.TarInfo]) -> None:
    """As a link, so that both names mean the same playbook."""
    named = [path for path in kept() if path.parts[0] == "playbooks" and "_" in path.stem]
    assert named
    for path in named:
        link = members[f"playbooks/{path.name.replace('_', '-')}"]
        assert link.issym() and Path(link.linkname).name == path.name
