# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A build gets to its place whole, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.malloc import whole_build
from ansible_collections.offheap.profiler.plugins.modules import installed_build as module
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module

NAME = "5.3.0-0123abcd"
FILES = {"lib/libjemalloc.so.2": b"library" * 50_000, "bin/jeprof": b"#!/usr/bin/perl\n"}


def record(files: Mapping[str, bytes]) -> bytes:
    return json.dumps(
        {"files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}}
    ).encode()


def pack(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> tuple[str, str]:
    """A tarball and its SHA-256."""
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    return str(path), hashlib.sha256(path.read_bytes()).hexdigest()


def member(name: str, kind: bytes = tarfile.REGTYPE, **more: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode = kind, 0o4777
    for key, value in more.items():
        setattr(found, key, value)
    return found


def whole(files: Mapping[str, bytes] = MappingProxyType(FILES)) -> list[tuple[tarfile.TarInfo, bytes]]:
    directories = [(member(name, tarfile.DIRTYPE), b"") for name in (NAME, f"{NAME}/lib", f"{NAME}/bin")]
    return [
        *directories,
        *((member(f"{NAME}/{name}", mode=0o755), content) for name, content in files.items()),
        (member(f"{NAME}/offheap.json", mode=0o640), record(files)),
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where builds go."""
    (tmp_path / "jemalloc").mkdir()
    return tmp_path / "jemalloc"


def refused(root: Path, tarball: str, sha256: str, *words: str) -> None:
    before = sorted(root.rglob("*"))
    with pytest.raises(whole_build.BuildError) as caught:
        whole_build.install(str(root / NAME), tarball, sha256)
    for word in words:
        assert word in str(caught.value)
    assert sorted(root.rglob("*")) == before, "nothing changed"


def test_a_build_is_installed_as_it_was_built(root: Path, tmp_path: Path) -> None:
    path = root / NAME
    assert whole_build.fault(str(path)) == f"{path}/offheap.json is missing"
    whole_build.install(str(path), *pack(tmp_path / "x.tar.gz", whole()))
    assert whole_build.fault(str(path)) is None
    assert {name: (path / name).read_bytes() for name in FILES} == FILES
    modes = {str(found.relative_to(root)): found.stat().st_mode & 0o7777 for found in root.rglob("*")}
    executable = {name for name, mode in modes.items() if mode == 0o755}
    assert executable == {NAME, f"{NAME}/lib", f"{NAME}/bin", *(f"{NAME}/{name}" for name in FILES)}
    assert modes[f"{NAME}/offheap.json"] == 0o644, "whatever the tarball says"


def test_a_tarball_with_another_checksum(root: Path, tmp_path: Path) -> None:
    tarball, _sha256 = pack(tmp_path / "x.tar.gz", whole())
    refused(root, tarball, "0" * 64, tarball, "but the build has " + "0" * 64, "nothing was unpacked")


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("/etc/outside"),
        member(f"{NAME}/../outside"),
        member(f"{NAME}/lib/.hidden"),
        member("5.3.0-other/lib"),
        member(f"{NAME}/link", tarfile.SYMTYPE, linkname="/etc/passwd"),
        member(f"{NAME}/link", tarfile.LNKTYPE, linkname="/etc/passwd"),
        member(f"{NAME}/pipe", tarfile.FIFOTYPE),
        member(f"{NAME}/device", tarfile.CHRTYPE),
        member(f"{NAME}/lib/libjemalloc.so.2"),
    ],
    ids=lambda bad: f"{bad.name}-{bad.type.decode()}",
)
def test_a_tarball_that_holds_anything_else(root: Path, tmp_path: Path, bad: tarfile.TarInfo) -> None:
    refused(root, *pack(tmp_path / "x.tar.gz", [*whole(), (bad, b"")]))
    assert not (tmp_path / "outside").exists()


def test_a_tarball_that_is_too_large_or_has_too_many_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"lib/{number}": b"" for number in range(110)}
    refused(root, *pack(tmp_path / "x.tar.gz", whole(many)), "not only files below")
    monkeypatch.setattr(whole_build, "_MOST_BYTES", 100_000)
    refused(root, *pack(tmp_path / "y.tar.gz", whole()), "larger than 100000 bytes")


@pytest.mark.parametrize("left_out", [*FILES, "offheap.json"])
def test_a_tarball_without_a_file_of_its_record(root: Path, tmp_path: Path, left_out: str) -> None:
    some = [(info, content) for info, content in whole() if not info.name.endswith(left_out)]
    refused(root, *pack(tmp_path / "x.tar.gz", some), "does not hold a whole build", f"{left_out} is missing")


def test_what_is_no_tarball(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    for content in (b"", b"text", Path(pack(path, whole())[0]).read_bytes()[:500]):
        path.write_bytes(content)
        refused(root, str(path), hashlib.sha256(content).hexdigest(), "was not installed")
    refused(root, str(tmp_path / "gone"), "0" * 64, "No such file")
    os.mkfifo(tmp_path / "pipe")
    refused(root, str(tmp_path / "pipe"), "0" * 64, "no regular file")


def make_a_link(path: Path) -> None:
    (path / "bin/jeprof").unlink()
    (path / "bin/jeprof").symlink_to("/bin/true")


def make_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: os.truncate(path / "lib/libjemalloc.so.2", 1000),
    "changed": lambda path: (path / "bin/jeprof").write_text("#!/usr/bin/perx\n"),
    "missing": lambda path: (path / "bin/jeprof").unlink(),
    "a link": make_a_link,
    "without a record": lambda path: (path / "offheap.json").unlink(),
    "with half a record": lambda path: os.truncate(path / "offheap.json", 20),
    "with an empty record": lambda path: (path / "offheap.json").write_text("{}"),
    "with another's record": lambda path: (path / "offheap.json").write_text('{"files": {"../../x": "0"}}'),
    "with a record of an earlier kind": lambda path: (path / "offheap.json").write_text('{"version": "5.3.0"}'),
    "a file": make_a_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_build_that_is_not_whole_is_replaced(root: Path, tmp_path: Path, damage: str) -> None:
    """Whatever an earlier run, a full disk or someone left there."""
    path = root / NAME
    tarball, sha256 = pack(tmp_path / "x.tar.gz", whole())
    whole_build.install(str(path), tarball, sha256)
    DAMAGES[damage](path)
    assert whole_build.fault(str(path)), "it does not count as installed"
    whole_build.install(str(path), tarball, sha256)
    assert whole_build.fault(str(path)) is None
    assert [entry.name for entry in root.iterdir()] == [NAME]


@pytest.fixture
def small(root: Path) -> Iterator[Path]:
    """A file system of 256 KiB there, with a build that is not whole; a whole one takes more."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", root], check=True)
    (root / NAME / "lib").mkdir(parents=True)
    (root / NAME / "lib" / "libjemalloc.so.2").write_bytes(b"half")
    yield root
    subprocess.run(["umount", root], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_no_room(small: Path, tmp_path: Path) -> None:
    """What was unpacked is gone again, and the next run, with more room, ends well."""
    tarball, sha256 = pack(tmp_path / "x.tar.gz", whole())
    refused(small, tarball, sha256, "No space left on device")
    subprocess.run(["mount", "-o", "remount,size=8m", small], check=True)
    whole_build.install(str(small / NAME), tarball, sha256)
    assert whole_build.fault(str(small / NAME)) is None


def test_what_a_killed_run_left_is_removed(root: Path, tmp_path: Path) -> None:
    (root / f".{NAME}.abc" / NAME).mkdir(parents=True)
    (root / ".5.3.0-other.abc").mkdir()
    whole_build.install(str(root / NAME), *pack(tmp_path / "x.tar.gz", whole()))
    assert sorted(entry.name for entry in root.iterdir()) == [".5.3.0-other.abc", NAME], "another's is not ours"


def test_the_patches_of_a_library(root: Path, tmp_path: Path) -> None:
    """By the record of a whole build only."""
    path = root / NAME
    library = str(path / "lib" / "libjemalloc.so.2")
    assert whole_build.patches(library) == whole_build.patches("/usr/lib/libjemalloc.so.2") == []
    whole_build.install(str(path), *pack(tmp_path / "x.tar.gz", whole()))
    assert whole_build.patches(library) == [], "its record names none"
    kept = json.loads((path / "offheap.json").read_text())
    (path / "offheap.json").write_text(json.dumps({**kept, "patches": {"seeds.patch": "0" * 64}}))
    assert whole_build.patches(library) == ["seeds.patch"]
    assert whole_build.patches(str(path / "bin" / "jeprof")) == []
    Path(library).write_bytes(b"another")
    assert whole_build.patches(library) == [], "it is not the one that was built"


def test_the_module(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(check: bool = False, **more: str) -> tuple[Any, ...]:
        build = {"path": str(root / NAME), **more}
        result = run_module(module.main, monkeypatch, capsys, check, builds=[build])
        return result.get("failed"), result.get("changed"), result.get("faults", {}).get(str(root / NAME))

    tarball, sha256 = pack(tmp_path / "x.tar.gz", whole())
    missing = f"{root / NAME}/offheap.json is missing"
    assert run(check=True, tarball=tarball, sha256=sha256) == (False, True, missing)
    assert not (root / NAME).exists()
    assert run(tarball=tarball, sha256="0" * 64)[:2] == (True, None)
    assert run(tarball=tarball, sha256=sha256) == (False, True, missing)
    assert run(tarball=tarball, sha256=sha256) == (False, False, None)
