# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What users get: all of the collection, and nothing from its workshop."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept
from ansible_collections.offheap.profiler.tests.gates.locked import locked

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
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("tarball")
    subprocess.run(["tests/gates/build.sh", output], cwd=ROOT, check=True, capture_output=True)
    (made,) = output.glob("offheap-profiler-*.tar.gz")
    return made


@pytest.fixture(scope="module")
def members(tarball: Path) -> dict[str, tarfile.TarInfo]:
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


def test_a_bill_of_materials_is_in_it(tarball: Path) -> None:
    with tarfile.open(tarball) as archive:
        texts = {
            name: (archive.extractfile(f"meta/{name}") or pytest.fail(name)).read()
            for name in ("sbom.cdx.json", "ee-requirements.lock")
        }
    bill = json.loads(texts["sbom.cdx.json"])
    ours = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == ours["version"]
    listed = {(part["name"], part["version"]) for part in bill["components"]}
    assert listed >= {(one.name, one.version) for one in locked(ROOT / "meta/ee-requirements.lock")}
    assert texts["ee-requirements.lock"] == (ROOT / "meta/ee-requirements.lock").read_bytes()
    (source,) = [part for part in bill["components"] if part["name"] == "jemalloc"]
    assert source["hashes"][0]["content"] in (ROOT / "roles/jemalloc/vars/main.yml").read_text()
    (depends,) = bill["dependencies"]
    assert set(depends["dependsOn"]) == {part["bom-ref"] for part in bill["components"]}


def test_every_playbook_is_there_under_a_name_with_dashes(members: dict[str, tarfile.TarInfo]) -> None:
    """As a link, so that both names mean the same playbook."""
    named = [path for path in kept() if path.parts[0] == "playbooks" and "_" in path.stem]
    assert named
    for path in named:
        link = members[f"playbooks/{path.name.replace('_', '-')}"]
        assert link.issym() and Path(link.linkname).name == path.name
