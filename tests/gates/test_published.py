# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What Galaxy and Automation Hub want of a collection, beyond their importer's and ansible-lint's checks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.agent.service import wait_for
from ansible_collections.offheap.profiler.tests.gates.files import ROOT
from ansible_collections.offheap.profiler.tests.gates.published import full_links

#: the sections that Red Hat's template for certified collections has, by their usual names
SECTIONS = "Description, Requirements, Installation, Use cases, Testing, Support, Release notes, License".split(", ")
PUBLIC = "https://example.org/offheap/profiler"
_LINKS = re.compile(r"\]\(([^)\s]+)\)")


def _built(tree: Path, *options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = ["tests/gates/build.sh", *options]
    return subprocess.run(
        command, cwd=tree, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )


def _text(tarball: Path, name: str) -> str:
    with tarfile.open(tarball) as archive:
        return (archive.extractfile(name) or pytest.fail(name)).read().decode()


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = _built(ROOT, str(tmp_path_factory.mktemp("tarball")))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture
def with_a_public_place(tmp_path: Path) -> Path:
    """The tree of a project that has one."""
    made = subprocess.run(["tests/gates/tree.sh", tmp_path], cwd=ROOT, check=True, capture_output=True, text=True)
    tree = Path(made.stdout.strip())
    galaxy = tree / "galaxy.yml"
    galaxy.write_text(re.sub("(?m)^repository: .*", f"repository: {PUBLIC}", galaxy.read_text()))
    (tree / ".venv").symlink_to(ROOT / ".venv")
    for command in (["git", "init", "-q"], ["git", "add", "--all"]):
        subprocess.run(command, cwd=tree, check=True)
    return tree


@pytest.fixture
def key(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment with a key for signatures, and its ring."""
    home = Path(tempfile.mkdtemp(prefix="offheap-gpg-", dir="/tmp"))  # the agent's socket must have a short name
    environment = {"GNUPGHOME": str(home)}
    command = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "Publisher <publisher@example.org>"]
    try:
        subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
        with (tmp_path / "ring.gpg").open("wb") as ring:
            subprocess.run(["gpg", "--export"], env={**os.environ, **environment}, check=True, stdout=ring)
        yield environment
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, **environment}, check=True)
        wait_for("gpg's agents have gone, with their sockets", lambda: not list(home.glob("S.*")))
        shutil.rmtree(home)


def test_links_become_addresses_of_this_version() -> None:
    text = "![A](docs/a.png) [b](docs/b.md#c) [d](#d) [e](https://example.org/e) [f](mailto:g)"
    assert full_links(text, PUBLIC, "1.2.3") == (
        f"![A]({PUBLIC}/raw/1.2.3/docs/a.png) [b]({PUBLIC}/blob/1.2.3/docs/b.md#c) [d](#d) [e](https://example.org/e) "
        "[f](mailto:g)"
    )


def test_what_is_published_has_full_addresses_only(tarball: Path) -> None:
    links = _LINKS.findall(_text(tarball, "README.md"))
    assert len(links) > 30
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    information: dict[str, Any] = json.loads(_text(tarball, "MANIFEST.json"))["collection_info"]
    repository = yaml.safe_load((ROOT / "galaxy.yml").read_text())["repository"]
    places = [information[name] for name in ("repository", "documentation", "homepage", "issues")]
    assert [place for place in places if not place.startswith(repository)] == []


def test_the_readme_has_the_sections_of_certified_collections(tarball: Path) -> None:
    text = _text(tarball, "README.md")
    assert [name for name in SECTIONS if f"\n## {name}\n" not in text] == []
    assert not re.search("pip install ansible", text)


def test_each_version_has_a_changelog(tarball: Path) -> None:
    version = json.loads(_text(tarball, "MANIFEST.json"))["collection_info"]["version"]
    assert version in yaml.safe_load(_text(tarball, "changelogs/changelog.yaml"))["releases"]
    assert f"v{version}\n" in _text(tarball, "CHANGELOG.rst")


def test_ansible_itself_is_no_library_of_ours(tarball: Path) -> None:
    names = {re.split("[=<>~!]", line)[0].strip() for line in _text(tarball, "meta/ee-requirements.txt").splitlines()}
    assert {"ansible", "ansible-core"} & names == set()


def test_without_a_public_place_there_is_no_release(tmp_path: Path) -> None:
    done = _built(ROOT, "--release", str(tmp_path))
    assert done.returncode != 0 and "which nobody can reach" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_release_is_signed(with_a_public_place: Path, key: dict[str, str], tmp_path: Path) -> None:
    made = tmp_path / "made"
    done = _built(with_a_public_place, "--release", str(made), environment=key)
    assert done.returncode == 0, done.stderr
    (tarball,), (signature,) = made.glob("*.tar.gz"), made.glob("*.asc")
    assert f"]({PUBLIC}/blob/" in _text(tarball, "README.md")
    environment = {**os.environ, **key, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "collections")}

    def verified(path: Path) -> bool:
        """Whether it is what was signed, as ansible-galaxy finds once it is installed."""
        galaxy = [str(ROOT / ".venv" / "bin" / "ansible-galaxy"), "collection"]
        to = ["-p", str(tmp_path / "collections"), "--force", str(path)]
        subprocess.run([*galaxy, "install", *to], env=environment, check=True, capture_output=True)
        options = ["--keyring", str(tmp_path / "ring.gpg"), "--signature", signature.as_uri(), "offheap.profiler"]
        command = [*galaxy, "verify", "--offline", *options]
        return not subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    assert verified(tarball)
    other = tmp_path / "other.tar.gz"  # of the same name and version, with another file
    (with_a_public_place / "README.md").write_text("Planted.\n")
    shutil.copy(_built(with_a_public_place, str(tmp_path / "planted")).stdout.strip(), other)
    assert not verified(other)
