# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Somebody who can write where a library, or what it is made of, lies on its way: nothing of theirs is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce
from ansible_collections.offheap.profiler.tests.gates.files import ROOT

PLATFORM = "glibc-x86_64-4096"
ROLE = ROOT / "roles" / "jemalloc"
CARRIED: dict[str, str] = json.loads(reproduce.CARRIED.read_text())


#: after which task, which file is replaced by which (callback_plugins/swapper.py)
Swap = tuple[str, Path, Path]


def role_tasks(directory: Path, *names: str, swap: Swap | None = None, **variables: Any) -> str:
    """What comes of these files of the role on this machine, without root."""
    directory.mkdir(exist_ok=True)
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROLE / where / "main.yml") for where in ("defaults", "vars")],
        "tasks": [{"ansible.builtin.include_tasks": str(ROLE / "tasks" / name)} for name in names],
    }
    variables = {
        "ansible_python_interpreter": sys.executable,
        "role_path": str(ROLE),
        "_jemalloc_host": {"platform": {"key": PLATFORM, "libc_version": [2, 36]}},
        "_jemalloc_agent_root": str(directory / "agent"),
        **variables,
    }
    book = directory / "play.yml"
    book.write_text(json.dumps([play]))
    return played(directory, book, swap, **variables)


def played(directory: Path, book: Path, swap: Swap | None = None, **variables: Any) -> str:
    """What a playbook says on this machine."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", str(book), "-v"]
    command += ["-e", json.dumps(variables)]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache" / "collections")}
    environment |= {"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_NOCOLOR": "1", "COLUMNS": "200"}
    if swap:
        environment["ANSIBLE_CALLBACK_PLUGINS"] = str(Path(__file__).with_name("callback_plugins"))
        environment |= {"ANSIBLE_CALLBACKS_ENABLED": "swapper", "OFFHEAP_SWAP": json.dumps([*map(str, swap)])}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def sum_of(file: Path) -> str:
    """Its SHA-256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def planted(directory: Path, part: str, file: str) -> Path:
    """A whole build of the right name whose records are right, too; its library is another's."""
    name = part.partition("-")[2]
    tree = directory / "planted" / name
    (tree / file).parent.mkdir(parents=True)
    (tree / file).write_bytes(b"theirs")
    record = {"files": {file: hashlib.sha256(b"theirs").hexdigest()}}
    (tree / "offheap.json").write_text(json.dumps(record))
    tarball = directory / f"{part}-{PLATFORM}-cross.tar.gz"
    with tarfile.open(tarball, "w:gz") as tar:
        tar.add(tree, name)
    Path(f"{tarball}.json").write_text(json.dumps({**record, "sha256": sum_of(tarball)}))
    return tarball


@pytest.mark.parametrize(
    ("stem", "file"),
    [(reproduce.agent_stem(), "liboffheap.so"), (reproduce.library_stem(), "lib/libjemalloc.so.2")],
    ids=["agent", "library"],
)
def test_a_finished_build_that_is_not_ours_is_not_installed(tmp_path: Path, stem: str, file: str) -> None:
    place = tmp_path / "opt" / stem.partition("-")[2]
    place.parent.mkdir()
    part = {"method": "cross", "what": "it", "path": str(place), "stem": stem, "file": file}
    part.update(sha256="", sha256_option="")
    tarball = planted(tmp_path, stem, file)
    said = role_tasks(tmp_path / "run", "install.yml", _jemalloc_part=part, _jemalloc_tarball=str(tarball))
    assert f"{file} in {place}.tar.gz has the SHA-256 {hashlib.sha256(b'theirs').hexdigest()}" in said
    assert f"but the collection pins {CARRIED[f'{stem}-{PLATFORM}']}" in said
    assert list(place.parent.iterdir()) == []


def test_the_role_names_the_agent_as_its_checksum_does(tmp_path: Path) -> None:
    """Under another name, nothing was compared."""
    said = role_tasks(tmp_path, "agent.yml", _jemalloc_installed={"installed": True})
    assert f'"_jemalloc_agent_version": "{reproduce.agent_stem().partition("-")[2]}"' in said


def test_an_agent_without_a_checksum_is_not_built(tmp_path: Path) -> None:
    part = {"what": "the agent", "path": "/x", "stem": "agent-000000000000", "compile": "compile_agent.yml"}
    said = role_tasks(tmp_path, "cross.yml", _jemalloc_part=part, _jemalloc_tarball=str(tmp_path / "x.tar.gz"))
    assert f"The collection has no checksum of agent-000000000000-{PLATFORM}" in said


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    said = role_tasks(tmp_path / "run", "cache.yml", jemalloc_cache=str(cache))
    assert f"can write to {cache} on the controller" in said
    assert "failed=1" in said


def test_a_new_cache_is_ours_alone_and_used_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert "failed=0" in role_tasks(tmp_path / "run", "cache.yml", "cache.yml", jemalloc_cache=str(cache))
    assert cache.stat().st_mode & 0o777 == 0o700


def release_of(directory: Path, content: str) -> Path:
    """A release tarball that says so in its VERSION."""
    tree = directory / content / "jemalloc-5.3.0"
    tree.mkdir(parents=True)
    (tree / "VERSION").write_text(content)
    with tarfile.open(directory / f"{content}.tar.bz2", "w:bz2") as tar:
        tar.add(tree, tree.name)
    return directory / f"{content}.tar.bz2"


def test_a_planted_source_is_replaced(tmp_path: Path) -> None:
    """Only the release has a checksum: what we make of it is made each time."""
    release, source = release_of(tmp_path, "ours"), tmp_path / "cache" / "source.tar"
    source.parent.mkdir()
    source.write_bytes(b"theirs")
    variables: dict[str, Any] = {
        "jemalloc_source": str(release),
        "_jemalloc_patch_files": [],
        "_jemalloc_patched_source": str(source),
    }
    said = role_tasks(tmp_path / "run", "source.yml", jemalloc_checksum=sum_of(release), **variables)
    assert "failed=0" in said
    with tarfile.open(source) as tar:
        content = tar.extractfile("jemalloc-5.3.0/VERSION")
        assert content is not None and content.read() == b"ours"


def test_a_source_that_is_swapped_after_it_was_looked_at_is_not_unpacked(tmp_path: Path) -> None:
    release, theirs, source = release_of(tmp_path, "ours"), release_of(tmp_path, "theirs"), tmp_path / "source.tar"
    variables: dict[str, Any] = {
        "jemalloc_source": str(release),
        "_jemalloc_patch_files": [],
        "_jemalloc_patched_source": str(source),
    }
    swap, ours = ("Refuse a missing or different file", release, theirs), sum_of(release)
    said = role_tasks(tmp_path / "run", "source.yml", swap=swap, jemalloc_checksum=ours, **variables)
    assert f"{release} has the SHA-256 {sum_of(theirs)} now, and the release has {ours}" in said
    assert not source.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="the library that is installed belongs to root")
@pytest.mark.parametrize("moment", ["Refuse what is missing", "Refuse another file", "Make its directory"])
def test_a_tracer_that_is_swapped_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """async-profiler's library, before it is looked at and after."""
    library, theirs, place, scratch = (tmp_path / name for name in ("ours.so", "theirs.so", "place", "scratch"))
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    library.write_bytes(b"ours")
    theirs.write_bytes(b"theirs")
    wanted = sum_of(library)
    said = played(
        tmp_path,
        ROOT / "playbooks" / "trace_live.yml",
        (moment, library, theirs),
        ansible_connection="local",
        ansible_become=False,
        ansible_python_interpreter=sys.executable,
        offheap_trace_unit="none-of-that-name",
        offheap_trace_library="ours.so",
        offheap_trace_library_checksum=wanted,
        offheap_trace_place=str(place),
    )
    assert library.read_bytes() == b"theirs", said
    if moment == "Refuse what is missing":
        assert f"ours.so has the SHA-256 {sum_of(theirs)}; wanted is {wanted}" in " ".join(said.split())
        assert not place.exists()
    else:
        assert (place / "libasyncProfiler.so").read_bytes() == b"ours", said
    assert not list(scratch.iterdir())


def test_a_download_that_fails_is_told_with_how_to_do_without(tmp_path: Path) -> None:
    address = "http://127.0.0.1:9/jemalloc.tar.bz2"
    variables: dict[str, Any] = {"_jemalloc_source_file": str(tmp_path / "source"), "_jemalloc_source_is_url": True}
    said = role_tasks(tmp_path / "run", "source.yml", jemalloc_source=address, **variables)
    assert f"The controller cannot download {address}: Request failed: <urlopen error" in said, said
    assert "-e jemalloc_source=/path/to/jemalloc-5.3.0.tar.bz2" in said and "https_proxy" in said
    assert "Apply our patches" not in said
