# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Spools, and what an attacker who has taken over the service could plant in them."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import Identity
from ansible_collections.offheap.profiler.plugins.module_utils.host import acl
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory as spool

UNIT = "frontend.service"
NAME = "jeprof.12.0.i0.heap"
OWNER = 12345

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "offheap"
    (directory / UNIT).mkdir(parents=True, mode=0o755)
    directory.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(directory / UNIT, OWNER, OWNER)
    return directory


def put(root: Path, name: str = NAME, content: bytes = b"dump") -> Path:
    path = root / UNIT / name
    path.write_bytes(content)
    if os.geteuid() == 0:
        os.chown(path, OWNER, OWNER)
    return path


def identity(path: Path) -> Identity:
    return Identity.of(path.stat())


def opened(root: Path, stack: contextlib.ExitStack) -> spool.Spool:
    found = stack.enter_context(spool.Root(str(root))).spool(UNIT)
    assert found is not None
    return stack.enter_context(found)


@pytest.fixture
def stack() -> contextlib.ExitStack:
    return contextlib.ExitStack()


def test_units(root: Path, stack: contextlib.ExitStack) -> None:
    (root / "other.service").mkdir()
    (root / ".hidden.service").mkdir()
    (root / "no unit").mkdir()
    with spool.Root(str(root)) as found:
        assert found.units() == [UNIT, "other.service"]
        assert found.spool("frontend") is not None
        assert found.spool("absent") is None


def test_names_of_dumps(root: Path, stack: contextlib.ExitStack) -> None:
    put(root)
    put(root, "jeprof.12.0.i0.heap.tmp")
    put(root, "core")
    (root / UNIT / "collected").mkdir()
    with stack:
        assert list(opened(root, stack).names()) == [NAME]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_root_directory_that_others_can_write(root: Path, mode: int) -> None:
    root.chmod(mode)
    with pytest.raises(spool.SpoolError, match="users other than root"):
        spool.Root(str(root))


@needs_root
def test_root_directory_of_somebody_else(root: Path) -> None:
    os.chown(root, OWNER, OWNER)
    with pytest.raises(spool.SpoolError, match=f"user {OWNER}"):
        spool.Root(str(root))


def test_absent_root_directory(tmp_path: Path) -> None:
    with pytest.raises(spool.SpoolError, match="No such file"):
        spool.Root(str(tmp_path / "absent"))


def test_a_spool_that_is_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / "linked.service").symlink_to(tmp_path / "elsewhere")
    (root / "file.service").write_bytes(b"")
    with spool.Root(str(root)) as found:
        with pytest.raises(spool.SpoolError, match="systemd would not make"):
            found.spool("linked")
        with pytest.raises(spool.SpoolError, match="not a directory"):
            found.spool("file")


@pytest.mark.parametrize("target", ["../private/offheap/dynamic.service", "{state}/private/offheap/dynamic.service"])
def test_spool_of_a_dynamic_user(root: Path, target: str) -> None:
    private = root.parent / "private" / "offheap" / "dynamic.service"
    private.mkdir(parents=True)
    (root.parent / "private").chmod(0o700)
    (root / "dynamic.service").symlink_to(target.format(state=root.parent))
    (private / NAME).write_bytes(b"dump")
    with spool.Root(str(root)) as found:
        entered = found.spool("dynamic")
        assert entered is not None
        with entered:
            assert list(entered.names()) == [NAME]
            assert entered.path == str(private)


@needs_root
def test_spool_of_a_dynamic_user_below_a_directory_of_somebody_else(root: Path) -> None:
    private = root.parent / "private" / "offheap" / "dynamic.service"
    private.mkdir(parents=True)
    os.chown(private.parent, OWNER, OWNER)
    (root / "dynamic.service").symlink_to("../private/offheap/dynamic.service")
    with spool.Root(str(root)) as found, pytest.raises(spool.SpoolError, match=f"user {OWNER}"):
        found.spool("dynamic")


def test_opening_a_dump(root: Path, stack: contextlib.ExitStack) -> None:
    put(root)
    with stack:
        fd = opened(root, stack).open(NAME)
        assert os.read(fd, 10) == b"dump"
        os.close(fd)


@pytest.mark.parametrize("plant", ["symlink", "hard link", "fifo", "directory", "socket", "absent"])
def test_what_is_planted_is_not_opened(root: Path, tmp_path: Path, stack: contextlib.ExitStack, plant: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    path = root / UNIT / NAME
    if plant == "symlink":
        path.symlink_to(secret)
    elif plant == "hard link":
        path.hardlink_to(secret)
    elif plant == "fifo":
        os.mkfifo(path)
    elif plant == "directory":
        path.mkdir()
    elif plant == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    with stack, pytest.raises(spool.SpoolError, match=NAME.replace(".", r"\.")):
        opened(root, stack).open(NAME)


@needs_root
def test_a_dump_of_a_third_user(root: Path, stack: contextlib.ExitStack) -> None:
    path = put(root)
    os.chown(path, OWNER + 1, OWNER)
    with stack, pytest.raises(spool.SpoolError, match="belongs to user"):
        opened(root, stack).open(NAME)


@needs_root
def test_a_dump_of_a_user_whom_the_spool_admits(root: Path, stack: contextlib.ExitStack) -> None:
    path = put(root)
    os.chown(path, OWNER + 1, OWNER)
    directory = os.open(path.parent, os.O_RDONLY)
    acl.admit(directory, [OWNER + 1])
    os.close(directory)
    with stack:
        os.close(opened(root, stack).open(NAME))
    os.chown(path, OWNER + 2, OWNER)
    with stack, pytest.raises(spool.SpoolError, match="belongs to user"):
        opened(root, stack).open(NAME)


@pytest.mark.parametrize("name", ["../../../etc/shadow", "collected", ".."])
def test_other_names_are_not_opened(root: Path, stack: contextlib.ExitStack, name: str) -> None:
    with stack, pytest.raises(spool.SpoolError, match="not the name of a dump"):
        opened(root, stack).open(name)
    with stack, pytest.raises(spool.SpoolError, match="not the name of a dump"):
        opened(root, stack).collect([(name, Identity(0, 0, 0))], delete=True)


def test_collecting_moves(root: Path, stack: contextlib.ExitStack) -> None:
    first, second = put(root), put(root, "jeprof.12.1.i1.heap", b"second")
    with stack:
        entered = opened(root, stack)
        assert entered.collect([(first.name, identity(first)), (second.name, identity(second))], delete=False) == [
            first.name,
            second.name,
        ]
        assert list(entered.names()) == []
    collected = root / UNIT / "collected"
    assert (collected / second.name).read_bytes() == b"second"
    assert collected.stat().st_mode & 0o777 == 0o700


def test_collecting_deletes(root: Path, stack: contextlib.ExitStack) -> None:
    path = put(root)
    with stack:
        assert opened(root, stack).collect([(path.name, identity(path))], delete=True) == [path.name]
    assert list((root / UNIT).iterdir()) == []


@pytest.mark.parametrize("delete", [False, True])
def test_what_changed_since_it_was_packed_stays(root: Path, stack: contextlib.ExitStack, delete: bool) -> None:
    path = put(root)
    packed = identity(path)
    path.write_bytes(b"newer dump of a process with the same number")
    with stack:
        entered = opened(root, stack)
        assert entered.collect([(path.name, packed)], delete) == []
        assert list(entered.names()) == [NAME]
        path.unlink()
        assert entered.collect([(path.name, packed)], delete) == []


def test_planted_link_in_the_place_of_collected(root: Path, tmp_path: Path, stack: contextlib.ExitStack) -> None:
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    (root / UNIT / "collected").symlink_to(elsewhere)
    path = put(root)
    with stack, pytest.raises(spool.SpoolError, match="not a directory, so dumps are left"):
        opened(root, stack).collect([(path.name, identity(path))], delete=False)
    assert list(elsewhere.iterdir()) == []
    assert path.exists()


@needs_root
def test_collected_of_a_third_user(root: Path, stack: contextlib.ExitStack) -> None:
    (root / UNIT / "collected").mkdir()
    os.chown(root / UNIT / "collected", OWNER + 1, OWNER)
    path = put(root)
    with stack, pytest.raises(spool.SpoolError, match="another user"):
        opened(root, stack).collect([(path.name, identity(path))], delete=False)
    assert path.exists()


def test_a_spool_swapped_for_a_link_after_it_was_entered(
    root: Path, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    path = put(root)
    packed = identity(path)
    elsewhere = tmp_path / "victim"
    elsewhere.mkdir()
    (elsewhere / NAME).write_bytes(b"keep me")
    with stack:
        entered = opened(root, stack)
        (root / UNIT).rename(root / "moved.service")
        (root / UNIT).symlink_to(elsewhere)
        assert entered.collect([(NAME, packed)], delete=False) == [NAME]
    assert (elsewhere / NAME).read_bytes() == b"keep me"
    assert (root / "moved.service" / "collected" / NAME).exists()


@pytest.mark.parametrize("delete", [False, True])
def test_what_lies_beside_a_dump_goes_with_it(root: Path, stack: contextlib.ExitStack, delete: bool) -> None:
    names = [NAME, f"{NAME}.json", f"{NAME}.map", "jeprof.12.1.i1.heap.json"]
    paths = [put(root, name) for name in names]
    with stack:
        found = opened(root, stack)
        assert list(found.names()) == [NAME], "companions are no dumps"
        fd = found.open_companion(NAME, dump_name.SIDECAR)
        assert fd is not None
        os.close(fd)
        assert found.open_companion("jeprof.12.1.i1.heap", dump_name.PERF_MAP) is None
        assert found.collect([(NAME, identity(paths[0]))], delete) == [NAME]
    assert [path.exists() for path in paths] == [False, False, False, True]
    collected = root / UNIT / spool.COLLECTED
    assert delete or sorted(path.name for path in collected.iterdir()) == sorted(names[:3])


def test_traps_beside_a_dump(root: Path, stack: contextlib.ExitStack) -> None:
    (root / UNIT / f"{NAME}.json").symlink_to("/etc/shadow")
    os.mkfifo(root / UNIT / f"{NAME}.map")
    (root / UNIT / f"{NAME}.lives").mkdir()
    (root / UNIT / f"{NAME}.holders").symlink_to("/etc/shadow")
    with stack:
        found = opened(root, stack)
        for suffix in dump_name.COMPANIONS:
            with pytest.raises(spool.SpoolError):
                found.open_companion(NAME, suffix)
        with pytest.raises(spool.SpoolError, match="not the name of a dump"):
            found.open_companion("../x", dump_name.PERF_MAP)


def test_what_was_collected_and_cannot_be_deleted_is_a_problem_of_its_spool(
    root: Path, stack: contextlib.ExitStack
) -> None:
    path = put(root)
    found = opened(root, stack)
    found.collect([(NAME, identity(path))], delete=False)
    (root / UNIT / spool.COLLECTED / f"{NAME}{dump_name.COMPANIONS[0]}").mkdir()
    with pytest.raises(spool.SpoolError, match=f"cannot delete .*/{spool.COLLECTED}/{NAME}"):
        found.thin_collected(0)


def test_a_recording_is_added_whole(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"finished" + b"begun")
    for left, seconds in (("heap", 7200), ("ahead", -1e9), ("map", 0)):
        (root / UNIT / f".{left}.part").write_bytes(b"cut off")
        os.utime(root / UNIT / f".{left}.part", (time.time() - seconds,) * 2)
    name = dump_name.of_trace(dump_name.TRACED, "1f3a9c20", 7, 12, 0)
    with contextlib.ExitStack() as stack, source.open("rb") as stream:
        found = opened(root, stack)
        found.add(name, stream.fileno(), 8)
        assert list(found.names()) == [name]
        with pytest.raises(spool.SpoolError, match="became shorter"):
            found.add(dump_name.of_trace(dump_name.TRACED, "1f3a9c20", 7, 12, 1), stream.fileno(), 800)
        with pytest.raises(spool.SpoolError, match="is not the name of a dump"):
            found.add("../x", stream.fileno(), 8)
    assert {path.name for path in (root / UNIT).iterdir()} == {name, ".map.part"}, "that may be written still"
    assert (root / UNIT / name).read_bytes() == b"finished"
    assert stat.S_IMODE((root / UNIT / name).stat().st_mode) == 0o600


def test_two_that_add_at_once_do_not_meet(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [tmp_path / "first", tmp_path / "second"]
    names = [dump_name.of_trace(dump_name.TRACED, "1f3a9c20", 7, 12, number) for number in range(2)]
    for source in sources:
        source.write_text(source.name)
    send = os.sendfile
    with contextlib.ExitStack() as stack:
        found = opened(root, stack)
        first, second = (stack.enter_context(source.open("rb")).fileno() for source in sources)

        def beside(*arguments: int) -> int:
            monkeypatch.setattr(os, "sendfile", send)
            found.add(names[1], second, len("second"))
            return send(*arguments)

        monkeypatch.setattr(os, "sendfile", beside)
        found.add(names[0], first, len("first"))
    assert [(root / UNIT / name).read_text() for name in names] == ["first", "second"]
