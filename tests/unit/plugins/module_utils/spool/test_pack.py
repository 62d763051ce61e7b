# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The packed file: what it holds, whose it is, and what happens when there is no room."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from ansible_collections.offheap.profiler.plugins.module_utils.formats.wire import PACKED
from ansible_collections.offheap.profiler.plugins.module_utils.spool import pack, zstd

MIB = 1 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "ansible-tmp-1"
    path.mkdir(mode=0o700)
    return path


def item(path: Path, member: str) -> pack.Item:
    return pack.Item(member, lambda: os.open(path, os.O_RDONLY))


def opened(path: Path) -> tarfile.TarFile:
    """The packed file, whichever way it was packed."""
    content = path.read_bytes()
    if content[:2] != b"\x1f\x8b":
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return tarfile.open(fileobj=io.BytesIO(content))


@pytest.fixture(params=[True, False], ids=["zstd", "gzip"])
def has_libzstd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(zstd, "library", lambda: None)
    return bool(request.param)


def refusing(reason: str) -> Callable[[], int]:
    def refuse() -> int:
        raise pack.Skip(reason)

    return refuse


def test_packing(directory: Path, tmp_path: Path, has_libzstd: bool) -> None:
    (tmp_path / "a").write_bytes(b"A" * 100000)
    (tmp_path / "b").write_bytes(os.urandom(3 * MIB))
    (tmp_path / "empty").write_bytes(b"")
    items = [item(tmp_path / name, f"dumps/{name}") for name in ("a", "b", "empty")]
    items += [pack.Item("dumps/c", refusing("not today")), item(tmp_path / "absent", "dumps/d")]
    packed = pack.pack(str(directory), items, 4 * MIB)
    path = directory / PACKED
    assert packed["size"] == path.stat().st_size
    assert packed["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert packed["members"] == {"dumps/a": 100000, "dumps/b": 3 * MIB, "dumps/empty": 0}
    assert set(packed["skipped"]) == {"dumps/c", "dumps/d"}
    assert packed["skipped"]["dumps/c"] == "not today"
    assert (path.read_bytes()[:4] == b"\x28\xb5\x2f\xfd") is has_libzstd
    with opened(path) as archive:
        assert archive.getnames() == ["dumps/a", "dumps/b", "dumps/empty"]
        content = archive.extractfile("dumps/b")
        assert content is not None and content.read() == (tmp_path / "b").read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    again = pack.pack(str(directory), items, 4 * MIB)
    assert again["sha256"] == packed["sha256"], "the file of an earlier call does not matter"
    pack.remove(str(directory))
    pack.remove(str(directory))
    assert list(directory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_the_file_belongs_to_the_login_user(directory: Path, tmp_path: Path) -> None:
    os.chown(directory, 12345, 12345)
    (tmp_path / "a").write_bytes(b"A")
    pack.pack(str(directory), [item(tmp_path / "a", "a")], 1)
    assert (directory / PACKED).stat().st_uid == 12345


def test_a_dump_that_shrinks_while_it_is_packed(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"A" * 5 * MIB)
    (tmp_path / "b").write_bytes(b"B")
    real = os.pread
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", lambda fd, length, offset: b"" if offset > MIB else real(fd, length, offset))
        packed = pack.pack(str(directory), [item(tmp_path / "a", "a"), item(tmp_path / "b", "b")], 6 * MIB)
    assert "shorter" in packed["skipped"]["a"]
    with opened(directory / PACKED) as archive:
        content = archive.extractfile("b")
        assert content is not None and content.read() == b"B", "what follows it is unharmed"


def test_planted_link_is_replaced_and_not_followed(directory: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep me")
    (directory / PACKED).symlink_to(victim)
    (tmp_path / "a").write_bytes(b"A")
    pack.pack(str(directory), [item(tmp_path / "a", "a")], 1)
    assert victim.read_bytes() == b"keep me"
    assert not (directory / PACKED).is_symlink()


def test_directory_that_is_a_link_or_open_to_others(directory: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(pack.StagingError, match="cannot open"):
        pack.pack(str(link), [], 0)
    directory.chmod(0o777)
    with pytest.raises(pack.StagingError, match="users other than its owner"):
        pack.pack(str(directory), [], 0)
    with pytest.raises(pack.StagingError, match="cannot examine"):
        pack.pack(str(tmp_path / "absent"), [], 0)


def test_too_little_room_is_said_before_anything_is_written(directory: Path) -> None:
    needed = pack.free(str(directory)) + 1
    with pytest.raises(pack.StagingError, match=f"needs up to {needed + MIB} bytes"):
        pack.pack(str(directory), [], needed)
    assert list(directory.iterdir()) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", path], check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield path
    subprocess.run(["umount", path], check=True)


def test_room_that_vanishes_while_it_is_packed(small: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(4 * MIB))
    with pytest.raises(pack.StagingError, match="No space left"):
        pack.pack(str(small), [item(tmp_path / "a", "a")], 0)
    assert list(small.iterdir()) == []


def test_memory_stays_small(directory: Path, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as stream:
        stream.truncate(100 * MIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pack.pack(str(directory), [item(tmp_path / "a", "a")], 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


def test_what_broken_runs_have_left_is_deleted_hours_later(directory: Path, tmp_path: Path) -> None:
    ages = {"ansible-tmp-old": 8000, "ansible-tmp-ahead": -1e9, "ansible-tmp-new": 6000, "other-old": 8000}
    for name, age in ages.items():
        (tmp_path / name).mkdir(mode=0o700)
        packed = tmp_path / name / PACKED
        packed.write_bytes(b"packed")
        os.utime(packed, (time.time() - age, time.time() - age))
    (tmp_path / "ansible-tmp-link").symlink_to(tmp_path / "other-old")
    (tmp_path / "ansible-tmp-empty").mkdir(mode=0o700)
    pack.clear_stale(f"{directory}/")
    assert {path.parent.name for path in tmp_path.rglob(PACKED)} == {"ansible-tmp-new", "other-old"}


def test_a_python_without_ctypes() -> None:
    """Where libffi is missing, a build of Python goes on without it, and Ansible does not need it."""
    script = (
        "import io, sys; sys.modules['ctypes'] = None\n"
        f"from {pack.__package__.rpartition('.')[0]}.memory import process\n"
        f"from {pack.__package__} import pack\n"
        "target = io.BytesIO(); pack.stream(target.write, []); print(target.getvalue()[:2].hex())\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-B", "-c", script]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1f8b\n", "")
