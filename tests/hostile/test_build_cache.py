# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Somebody who can write where a library, or what it is made of, lies on its way: nothing of theirs is loaded."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.offheap.profiler.plugins.action import finished_build, installed_tracer
from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce
from ansible_collections.offheap.profiler.tests.gates.files import ROOT
from ansible_collections.offheap.profiler.tests.unit.fakes import wanted_builds
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action

PLATFORM = wanted_builds.HOST["key"]
ROLE = ROOT / "roles" / "jemalloc"
CARRIED: dict[str, str] = json.loads(reproduce.CARRIED.read_text())


#: after which task, which file is replaced by which (callback_plugins/swapper.py)
Swap = tuple[str, Path, Path]


def role_tasks(directory: Path, part: str = "agent", **variables: Any) -> str:
    """What comes of the role for the library or the agent on this machine, without root."""
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROLE / where / "main.yml") for where in ("defaults", "vars")],
        "tasks": [{"ansible.builtin.include_tasks": str(ROLE / "tasks" / "main.yml")}],
    }
    variables = {
        "ansible_python_interpreter": sys.executable,
        "role_path": str(ROLE),
        "jemalloc_method": "cross",
        "jemalloc_cache": str(directory / "cache"),
        "jemalloc_agent": part == "agent",
        "_jemalloc_agent_alone": part == "agent",
        "_jemalloc_host": {
            "platform": wanted_builds.HOST,
            "missing": [wanted_builds.place(part, directory)],
            "unsound": {},
        },
        "_jemalloc_root": str(directory / "opt" / "library"),
        "_jemalloc_agent_root": str(directory / "opt" / "agent"),
        **variables,
    }
    book = directory / "play.yml"
    book.write_text(json.dumps([play]))
    return played(directory, book, **variables)


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
    (directory / "cache").mkdir(mode=0o700)
    tree = directory / "planted" / name
    (tree / file).parent.mkdir(parents=True)
    (tree / file).write_bytes(b"theirs")
    record = {"files": {file: hashlib.sha256(b"theirs").hexdigest()}}
    (tree / "offheap.json").write_text(json.dumps(record))
    tarball = directory / "cache" / f"{part}-{PLATFORM}-cross.tar.gz"
    with tarfile.open(tarball, "w:gz") as tar:
        tar.add(tree, name)
    Path(f"{tarball}.json").write_text(json.dumps({**record, "sha256": sum_of(tarball)}))
    return tarball


@pytest.mark.parametrize(
    ("part", "stem", "file"),
    [
        ("agent", reproduce.agent_stem(), "liboffheap.so"),
        ("library", reproduce.library_stem(), "lib/libjemalloc.so.2"),
    ],
)
def test_a_finished_build_that_is_not_ours_is_not_installed(tmp_path: Path, part: str, stem: str, file: str) -> None:
    tarball = planted(tmp_path, stem, file)
    said = role_tasks(tmp_path, part)
    assert re.search(rf"{file} in \S+/{tarball.name} has the SHA-256 {hashlib.sha256(b'theirs').hexdigest()}", said), (
        said
    )
    assert f"but the collection pins {CARRIED[f'{stem}-{PLATFORM}']}" in said
    assert [path for path in (tmp_path / "opt").rglob("*") if path.is_file()] == []


def test_the_role_names_the_agent_as_its_checksum_does(tmp_path: Path) -> None:
    """Under another name, nothing was compared."""
    whole = {"platform": wanted_builds.HOST, "missing": []}
    said = role_tasks(tmp_path, _jemalloc_host=whole)
    assert f'/agent/{reproduce.agent_stem().partition("-")[2]}/liboffheap.so"' in said


def test_an_agent_without_a_checksum_is_not_built(tmp_path: Path) -> None:
    place = str(tmp_path / "opt" / "agent" / "000000000000")
    lacking = {"platform": wanted_builds.HOST, "missing": [place]}
    said = role_tasks(tmp_path, _jemalloc_agent_version="000000000000", _jemalloc_host=lacking)
    assert f"The collection has no checksum of agent-000000000000-{PLATFORM}" in said


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    said = role_tasks(tmp_path)
    assert f"can write to {cache} on the controller" in said
    assert "failed=1" in said


def test_a_new_cache_is_ours_alone_and_used_again(tmp_path: Path) -> None:
    build = wanted_builds.build("agent", tmp_path)
    for _time in range(2):
        with finished_build.alone(build.cache):
            assert build.cache.stat().st_mode & 0o777 == 0o700
        build.refuse_cache()


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
    release = release_of(tmp_path, "ours")
    build = wanted_builds.build("library", tmp_path, source=str(release), checksum=sum_of(release), patches={})
    build.cache.mkdir()
    (build.cache / f"{build.stem}-source.tar").write_bytes(b"theirs")
    with tarfile.open(build.sources()) as tar:
        content = tar.extractfile("jemalloc-5.3.0/VERSION")
        assert content is not None and content.read() == b"ours"


def test_a_release_that_was_swapped_is_not_unpacked(tmp_path: Path) -> None:
    ours, theirs = release_of(tmp_path, "ours"), release_of(tmp_path, "theirs")
    build = wanted_builds.build("library", tmp_path, source=str(theirs), checksum=sum_of(ours), patches={})
    build.cache.mkdir()
    with pytest.raises(AnsibleActionFail, match=f"{sum_of(theirs)}, but jemalloc-5.3.0 has {sum_of(ours)}"):
        build.sources()
    assert list(build.cache.iterdir()) == []


@pytest.fixture
def tracers(tmp_path: Path) -> tuple[Path, Path]:
    """async-profiler's library, and another's."""
    ours, theirs = tmp_path / "ours.so", tmp_path / "theirs.so"
    ours.write_bytes(b"ours")
    theirs.write_bytes(b"theirs")
    return ours, theirs


def test_a_tracer_that_is_swapped_before_it_is_read_is_not_sent(tmp_path: Path, tracers: tuple[Path, Path]) -> None:
    library, theirs = tracers
    wanted, place = sum_of(library), tmp_path / "place"
    said = played(
        tmp_path,
        ROOT / "playbooks" / "trace_live.yml",
        ("Refuse what is missing", library, theirs),
        ansible_connection="local",
        ansible_become=False,
        ansible_python_interpreter=sys.executable,
        offheap_trace_unit="none-of-that-name",
        offheap_trace_library="ours.so",
        offheap_trace_library_checksum=wanted,
        offheap_trace_place=str(place),
    )
    assert library.read_bytes() == b"theirs", said
    assert f"ours.so has the SHA-256 {sum_of(theirs)}; wanted is {wanted}" in " ".join(said.split())
    assert not place.exists()


def test_a_tracer_that_is_swapped_after_it_was_read_is_not_sent(
    tmp_path: Path, tracers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, theirs = tracers
    sent = []

    def module(_self: Any, _name: str, _arguments: dict[str, Any], _variables: Any) -> dict[str, Any]:
        shutil.copyfile(theirs, library)
        return {"changed": True}

    plugin = installed_tracer.ActionModule
    monkeypatch.setattr(plugin, "_module", module)
    monkeypatch.setattr(plugin, "_make_tmp_path", lambda _self: "/tmp/")
    monkeypatch.setattr(plugin, "_transfer_file", lambda _self, file, _place: sent.append(Path(file).read_bytes()))
    asked: dict[str, Any] = {
        "src": str(library),
        "checksum": sum_of(library),
        "path": str(tmp_path / "place" / "libasyncProfiler.so"),
    }
    assert run_action(installed_tracer, **asked)["changed"]
    assert sent == [b"ours"] and library.read_bytes() == b"theirs"


def test_a_download_that_fails_is_told_with_how_to_do_without(tmp_path: Path) -> None:
    address = "http://127.0.0.1:9/jemalloc.tar.bz2"
    build = wanted_builds.build("library", tmp_path, source=address)
    with pytest.raises(AnsibleActionFail) as raised:
        build.sources()
    said = str(raised.value)
    assert f"The controller cannot download {address}: Request failed: <urlopen error" in said, said
    assert "-e jemalloc_source=/path/to/jemalloc-5.3.0.tar.bz2" in said and "https_proxy" in said
