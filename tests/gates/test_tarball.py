# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What users get: all of the collection, and nothing from its workshop."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce
from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept
from ansible_collections.offheap.profiler.tests.gates.locked import locked

SHIPPED = {
    "CHANGELOG.rst",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "SECURITY.md",
    "changelogs",
    "console",
    "docs",
    "extensions",
    "fabfile.py",
    "meta",
    "playbooks",
    "plugins",
    "roles",
    "tests",
}
_PATCHES = f"roles/jemalloc/files/patches/{reproduce.VERSION}/"


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
    assert {name for name in members if name.startswith("tests/")} == {"tests/config.yml"}
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


def test_what_its_builds_are_made_of_is_in_it(tarball: Path) -> None:
    """Each build with a checksum, and each source as it is in the tarball."""
    with tarfile.open(tarball) as archive:
        read = {member.name: member for member in archive.getmembers() if member.isfile()}

        def content(name: str) -> bytes:
            return (archive.extractfile(read[name]) or pytest.fail(name)).read()

        statements = json.loads(content("meta/provenance.json"))
        built = {one["name"]: one["digest"]["sha256"] for part in statements for one in part["subject"]}
        assert built == json.loads(content("roles/jemalloc/files/cross_checksums.json"))
        used = [one for part in statements for one in part["predicate"]["buildDefinition"]["resolvedDependencies"]]
        sources = {one["name"]: one["digest"]["sha256"] for one in used if "name" in one}
        assert sources == {name: hashlib.sha256(content(name)).hexdigest() for name in sources}
        of_ours = {name for name in read if name.startswith(("roles/jemalloc/files/agent/", _PATCHES))}
        assert of_ours <= set(sources)
        checksums = yaml.safe_load(content("roles/jemalloc/vars/main.yml"))["_jemalloc_checksums"]
        lock = content("meta/ee-requirements.lock").decode()
    compilers = [one["digest"]["sha256"] for one in used if "/ziglang@" in one.get("uri", "")]
    assert compilers and all(f"sha256:{checksum}" in lock for checksum in compilers)
    (release,) = [one["digest"]["sha256"] for one in used if "/jemalloc@" in one.get("uri", "")]
    assert release in checksums.values()


def test_every_playbook_is_there_under_a_name_with_dashes(members: dict[str, tarfile.TarInfo]) -> None:
    """As a link, so that both names mean the same playbook."""
    named = [path for path in kept() if path.parts[0] == "playbooks" and "_" in path.stem]
    assert named
    for path in named:
        link = members[f"playbooks/{path.name.replace('_', '-')}"]
        assert link.issym() and Path(link.linkname).name == path.name
