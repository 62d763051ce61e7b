# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The spool: made for one user, and never removed before its dumps are collected."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit import spool_directory
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to other users, which only root can")
APP = Owner(4711, 4712)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "SPOOLS", str(tmp_path / "offheap"))
    monkeypatch.setattr(places, "PRIVATE_SPOOLS", str(tmp_path / "private" / "offheap"))
    return tmp_path / "offheap"


def facts(directory: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in [directory, *directory.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_uid, status.st_gid)
    return found


def everything(directory: Path) -> list[tuple[object, ...]]:
    """The same, and extended attributes, in which access control lists are."""

    def attributes(path: str) -> dict[str, bytes]:
        names = os.listxattr(path, follow_symlinks=False)
        return {name: os.getxattr(path, name, follow_symlinks=False) for name in names}

    return [(path, fact, attributes(path)) for path, fact in facts(directory).items()]


def run(tmp_path: Path, act: Callable[[Changes], None]) -> Changes:
    """Act, and check that check mode predicts the same and changes nothing."""
    before = everything(tmp_path)
    checked = Changes(check_mode=True)
    act(checked)
    assert everything(tmp_path) == before
    done = Changes(check_mode=False)
    act(done)
    assert checked.diff() == done.diff()
    assert done.any == (everything(tmp_path) != before)
    assert not done.units, "systemd need not read anything again"
    return done


def make(tmp_path: Path, spool: Path, *writers: Owner) -> Changes:
    return run(tmp_path, lambda changes: spool_directory.make(changes, str(spool), writers or [APP]))


def purge(tmp_path: Path, spool: Path) -> Changes:
    return run(tmp_path, lambda changes: spool_directory.purge(changes, str(spool), False, []))


def test_make(root: Path, tmp_path: Path) -> None:
    spool = root / "web.service"
    os.umask(os.umask(0o077))
    done = make(tmp_path, spool)
    assert facts(root) == {str(root): (0o40755, 0, 0), str(spool): (0o40700, APP.uid, APP.gid)}
    assert [part["after"] for part in done.diff()] == ["directory 755 0:0\n", "directory 700 4711:4712\n"]
    assert not make(tmp_path, spool).any


def test_workers_of_several_users_are_let_in_and_nobody_else(root: Path, tmp_path: Path) -> None:
    spool, root_user = root / "web.service", Owner(0, 0)
    done = make(tmp_path, spool, root_user, Owner(33, 33), Owner(44, 44))
    assert done.diff()[1]["after"] == "directory 700 0:0, and users 33, 44\n"
    assert not make(tmp_path, spool, root_user, Owner(44, 44), Owner(33, 33)).any
    for uid, gid, may in ((33, 4711, True), (44, 0, True), (4711, 0, False), (4711, 33, False)):
        assert _can_write(spool, uid, gid) is may
    spool.chmod(0o700)
    assert not _can_write(spool, 33, 33), "the bits of the group are what a list grants at most"
    assert make(tmp_path, spool, root_user, Owner(33, 33), Owner(44, 44)).any and _can_write(spool, 33, 33)
    spool.chmod(0o1777)
    assert make(tmp_path, spool, root_user, Owner(33, 33), Owner(44, 44)).any
    assert not make(tmp_path, spool, root_user, Owner(33, 33), Owner(44, 44)).any
    assert _can_write(spool, 33, 33) and not _can_write(spool, 55, 55)
    done = make(tmp_path, spool, root_user, Owner(33, 33), Owner(55, 55))
    assert (done.diff()[0]["before"], done.diff()[0]["after"]) == (
        "directory 700 0:0, and users 33, 44\n",
        "directory 700 0:0, and users 33, 55\n",
    )
    assert make(tmp_path, spool).diff()[0]["before"] == "directory 700 0:0, and users 33, 55\n"
    assert not _can_write(spool, 33, 33) and not make(tmp_path, spool).any
    assert facts(root)[str(spool)] == (0o40700, APP.uid, APP.gid)


def _can_write(directory: Path, uid: int, gid: int) -> bool:
    """Whether a user with that group can make a file there."""
    child = os.fork()
    if child == 0:
        may = False
        try:
            descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)  # the directories above are root's
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            may = os.access(f"/proc/self/fd/{descriptor}/.", os.W_OK | os.X_OK)
        finally:
            os._exit(0 if may else 1)
    return os.waitpid(child, 0)[1] == 0


def test_where_there_are_no_lists(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def setxattr(*_arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "setxattr", setxattr)
    with pytest.raises(UnitError, match=r"has no access control lists .* children: false"):
        spool_directory.make(Changes(False), str(root / "web.service"), [Owner(0, 0), APP, Owner(33, 33)])


def test_where_nothing_can_be_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*_arguments: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(UnitError, match=f"{root} cannot be made: Read-only file system. Correct"):
        spool_directory.make(Changes(False), str(root / "web.service"), [APP])


def test_make_whatever_the_umask(root: Path) -> None:
    before = os.umask(0o077)
    try:
        spool_directory.make(Changes(False), str(root / "web.service"), [APP])
    finally:
        os.umask(before)
    assert root.stat().st_mode & 0o777 == 0o755


def test_a_directory_with_another_owner_or_mode_is_set_right(root: Path, tmp_path: Path) -> None:
    spool = root / "web.service"
    spool.mkdir(parents=True, mode=0o755)
    spool.chmod(0o755)
    os.chown(root, 4711, 4711)
    done = make(tmp_path, spool)
    assert facts(root) == {str(root): (0o40755, 0, 0), str(spool): (0o40700, APP.uid, APP.gid)}
    assert [part["before"] for part in done.diff()] == ["directory 755 4711:4711\n", "directory 755 0:0\n"]


@pytest.mark.parametrize("place", ["offheap", "offheap/web.service"])
def test_a_planted_link_is_refused(root: Path, tmp_path: Path, place: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(victim)
    before = facts(victim)
    with pytest.raises(UnitError, match=r"is not a directory; move it away"):
        spool_directory.make(Changes(False), str(root / "web.service"), [APP])
    assert facts(victim) == before


def test_a_link_planted_at_the_last_moment_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    root.mkdir()

    def planting(path: str, _mode: int) -> None:
        os.symlink(victim, path)

    monkeypatch.setattr(os, "mkdir", planting)
    before = facts(victim)
    with pytest.raises(OSError, match="Not a directory"):
        spool_directory.make(Changes(False), str(root / "web.service"), [APP])
    assert facts(victim) == before


def test_purge(root: Path, tmp_path: Path) -> None:
    spool = root / "web.service"
    make(tmp_path, spool)
    (spool / "collected").mkdir()
    (spool / "collected" / "jeprof.1.0.i0.heap").write_text("")
    (spool / "stats.json").write_text("")
    done = purge(tmp_path, spool)
    assert not root.exists()
    assert [(part["before_header"], part["before"], part["after"]) for part in done.diff()] == [
        (str(spool), "directory\n", "")
    ]
    assert not purge(tmp_path, spool).any


def test_spools_of_other_units_stay(root: Path, tmp_path: Path) -> None:
    for name in ("web.service", "other.service"):
        make(tmp_path, root / name)
    purge(tmp_path, root / "web.service")
    assert [path.name for path in root.iterdir()] == ["other.service"]


def test_a_file_system_of_its_own_stays(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would not let its directory be removed."""
    make(tmp_path, root / "web.service")
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(root))
    purge(tmp_path, root / "web.service")
    assert list(root.iterdir()) == []


def test_dumps_that_were_not_collected_are_kept(root: Path, tmp_path: Path) -> None:
    spool = root / "web.service"
    make(tmp_path, spool)
    waiting = [f"jeprof.{number}.0.i0.heap" for number in (1, 2)]
    before = facts(root)
    for check in (True, False):
        with pytest.raises(UnitError, match=r"2 dumps .* jeprof\.1\.0\.i0\.heap.* rollback_disc"):
            spool_directory.purge(Changes(check), str(spool), False, waiting)
    assert facts(root) == before
    purge(tmp_path, spool)
    assert not root.exists()


def test_what_is_no_dump_keeps_no_spool(root: Path, tmp_path: Path) -> None:
    """Nobody would ever collect it."""
    spool = root / "web.service"
    make(tmp_path, spool)
    (spool / "x.heap").write_text("")
    purge(tmp_path, spool)
    assert not root.exists()


def test_a_spool_in_use_is_kept(root: Path, tmp_path: Path) -> None:
    spool = root / "web.service"
    make(tmp_path, spool)
    with pytest.raises(UnitError, match="Restart it first"):
        spool_directory.purge(Changes(False), str(spool), True, [])
    assert spool.exists()


def test_a_spool_that_systemd_made_goes_with_its_link(root: Path, tmp_path: Path) -> None:
    real = tmp_path / "private" / "offheap" / "web.service"
    real.mkdir(parents=True)
    root.mkdir()
    (root / "web.service").symlink_to("../private/offheap/web.service")
    (real / "jeprof.1.0.i0.heap").write_text("")
    with pytest.raises(UnitError, match="1 dumps"):
        spool_directory.purge(Changes(False), str(root / "web.service"), False, ["jeprof.1.0.i0.heap"])
    (real / "jeprof.1.0.i0.heap").unlink()
    purge(tmp_path, root / "web.service")
    assert not os.path.lexists(root) and not real.parent.exists()
    assert (tmp_path / "private").exists(), "systemd's own"


def test_a_removal_that_is_broken_off_can_be_done_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one on a file system that is read-only after an error."""
    real = Path(places.PRIVATE_SPOOLS) / "web.service"
    real.mkdir(parents=True)
    root.mkdir()
    (root / "web.service").symlink_to(real)
    spool = str(root / "web.service")

    def broken_off(_path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "jeprof.1.0.i0.heap")

    with monkeypatch.context() as patched, pytest.raises(UnitError, match=f"{real} cannot be removed: .*Read-only"):
        patched.setattr(spool_directory, "remove", broken_off)
        spool_directory.purge(Changes(check_mode=False), spool, False, [])
    spool_directory.purge(Changes(check_mode=False), spool, False, [])
    assert not real.exists() and not root.exists()


def test_a_link_without_its_directory_goes(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (root / "web.service").symlink_to("../private/offheap/web.service")
    purge(tmp_path, root / "web.service")
    assert not root.exists()


def test_links_are_not_followed_when_purging(root: Path, tmp_path: Path) -> None:
    """Neither one in place of the spool, nor one that the service has put into it."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("")
    root.mkdir()
    (root / "link.service").symlink_to(victim)
    spool_directory.purge(Changes(False), str(root / "link.service"), False, [])
    make(tmp_path, root / "web.service")
    (root / "web.service" / "collected").symlink_to(victim)
    spool_directory.purge(Changes(False), str(root / "web.service"), False, [])
    assert (victim / "kept").exists()
    assert not root.exists()
