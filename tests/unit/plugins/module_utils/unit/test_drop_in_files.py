# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Our files beside a unit, in real directories: check mode predicts what a run does, and everything can be removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in, drop_in_files
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.drop_in_files import WantedFiles
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError

UNIT = "web.service"
Act = Callable[[Changes], None]


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    etc, run = tmp_path / "etc", tmp_path / "run"
    for root, name in ((etc, "PERSISTENT"), (run, "UNTIL_REBOOT")):
        root.mkdir()
        monkeypatch.setattr(places, name, str(root))
    return etc, run


def wanted(file: str | None = None, until_reboot: bool = False, options: str = "prof:true") -> WantedFiles:
    injection = drop_in.Injection("/l.so", [f'Environment="MALLOC_CONF={options}"'], file, {}, frozenset())
    return WantedFiles(places.drop_ins_of(UNIT, until_reboot), injection, "/spool", [])


def tree(root: Path) -> dict[str, str]:
    """Every path below a directory, with its mode and the text of files."""
    found = {}
    for path in sorted(root.rglob("*")):
        text = path.read_text() if path.is_file() else ""
        found[str(path.relative_to(root))] = f"{path.lstat().st_mode:o} {text}"
    return found


def run(tmp_path: Path, act: Act) -> Changes:
    """Act, and check that check mode predicts the same and changes nothing."""
    before = tree(tmp_path)
    checked = Changes(check_mode=True)
    act(checked)
    assert tree(tmp_path) == before
    done = Changes(check_mode=False)
    act(done)
    assert (checked.any, checked.units, checked.diff()) == (done.any, done.units, done.diff())
    assert done.any == (tree(tmp_path) != before)
    return done


def write(tmp_path: Path, what: WantedFiles) -> Changes:
    return run(tmp_path, lambda changes: drop_in_files.write(changes, UNIT, what))


def remove(tmp_path: Path) -> Changes:
    return run(tmp_path, lambda changes: drop_in_files.remove(changes, UNIT))


def test_write_and_remove(roots: tuple[Path, Path], tmp_path: Path) -> None:
    before = tree(tmp_path)
    done = write(tmp_path, wanted(file="A=1\n"))
    place = roots[0] / "web.service.d"
    assert sorted(path.name for path in place.iterdir()) == ["90-offheap.conf", "90-offheap.env"]
    modes = {path.name: path.stat().st_mode & 0o777 for path in place.iterdir()}
    assert modes == {"90-offheap.conf": 0o644, "90-offheap.env": 0o600}
    assert place.stat().st_mode & 0o777 == 0o755
    shown = {part["after_header"]: part for part in done.diff()}
    texts = {str(place / "90-offheap.conf"): (place / "90-offheap.conf").read_text()}
    texts[str(place / "90-offheap.env")] = "sets A (values are not shown)\n"
    for path in place.iterdir():
        assert (shown[str(path)]["before"], shown[str(path)]["after"]) == ("", texts[str(path)])
    assert drop_in_files.installed(UNIT) == [str(place / "90-offheap.conf")]
    assert not write(tmp_path, wanted(file="A=1\n")).any, "a second run changes nothing"

    done = remove(tmp_path)
    assert {part["before_header"]: part["before"] for part in done.diff()} == texts
    assert tree(tmp_path) == before
    assert not remove(tmp_path).any, "a second run changes nothing"
    assert drop_in_files.installed(UNIT) == []


def test_new_settings(roots: tuple[Path, Path], tmp_path: Path) -> None:
    write(tmp_path, wanted(file="A=1\n"))
    done = write(tmp_path, wanted(options="prof:true,narenas:1"))
    assert done.units
    assert not (roots[0] / "web.service.d/90-offheap.env").exists(), "no longer needed"
    assert "narenas:1" in (roots[0] / "web.service.d/90-offheap.conf").read_text()
    remove(tmp_path)
    assert tree(roots[0]) == {}, "it is still known that the directory is ours"


def test_a_change_of_a_value_is_told_without_it(roots: tuple[Path, Path], tmp_path: Path) -> None:
    write(tmp_path, wanted(file='A="geheim"\n'))
    (part,) = write(tmp_path, wanted(file='A="sehr geheim"\n')).diff()
    assert "geheim" not in str(part) and part["before"] != part["after"]
    assert (roots[0] / "web.service.d/90-offheap.env").read_text() == 'A="sehr geheim"\n'


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644])
def test_a_file_that_others_may_read_is_closed(roots: tuple[Path, Path], tmp_path: Path, mode: int) -> None:
    write(tmp_path, wanted(file="A=1\n"))
    file = roots[0] / "web.service.d/90-offheap.env"
    file.chmod(mode)
    (part,) = write(tmp_path, wanted(file="A=1\n")).diff()
    assert "other users may read it" in part["before"] and file.stat().st_mode & 0o777 == 0o600


def test_files_of_others_stay(roots: tuple[Path, Path], tmp_path: Path) -> None:
    place = roots[0] / "web.service.d"
    write(tmp_path, wanted())
    (place / "10-admin.conf").write_text("[Service]\n")
    remove(tmp_path)
    assert [path.name for path in place.iterdir()] == ["10-admin.conf"]


def test_a_directory_that_was_there_stays(roots: tuple[Path, Path], tmp_path: Path) -> None:
    place = roots[0] / "web.service.d"
    place.mkdir(mode=0o750)
    before = tree(tmp_path)
    write(tmp_path, wanted())
    write(tmp_path, wanted(options="prof:true,narenas:1"))
    remove(tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("until_reboot", [False, True])
def test_only_one_of_the_two_places(roots: tuple[Path, Path], tmp_path: Path, until_reboot: bool) -> None:
    write(tmp_path, wanted(file="A=1\n", until_reboot=not until_reboot))
    write(tmp_path, wanted(file="A=1\n", until_reboot=until_reboot))
    here, there = (roots[1], roots[0]) if until_reboot else roots
    assert len(tree(here)) == 3
    assert tree(there) == {}


def test_both_places_are_cleared(roots: tuple[Path, Path], tmp_path: Path) -> None:
    for root in roots:
        (root / "web.service.d").mkdir()
        (root / "web.service.d" / "90-offheap.conf").write_text(wanted().injection.text({"made_directory": True}))
    assert len(drop_in_files.installed(UNIT)) == 2
    remove(tmp_path)
    assert tree(roots[0]) == tree(roots[1]) == {}


@pytest.mark.parametrize("left", ["90-offheap.env", ".90-offheap-x1y2z3"])
def test_what_a_killed_run_left_is_removed(roots: tuple[Path, Path], tmp_path: Path, left: str) -> None:
    place = roots[0] / "web.service.d"
    place.mkdir()
    (place / left).write_text("half")
    (place / "10-admin.conf").write_text("")
    remove(tmp_path)
    assert [path.name for path in place.iterdir()] == ["10-admin.conf"]


def test_what_a_killed_run_left_is_completed(roots: tuple[Path, Path], tmp_path: Path) -> None:
    place = roots[0] / "web.service.d"
    place.mkdir()
    (place / "90-offheap.env").write_text("A=1\n")
    (place / "90-offheap.env").chmod(0o600)
    done = write(tmp_path, wanted(file="A=1\n"))
    assert [part["after_header"] for part in done.diff()] == [str(place / "90-offheap.conf")]


def test_a_drop_in_edited_by_hand_is_removed(roots: tuple[Path, Path], tmp_path: Path) -> None:
    place = roots[0] / "web.service.d"
    write(tmp_path, wanted())
    (place / "90-offheap.conf").write_text("# offheap: {oops\n[Service]\n")
    remove(tmp_path)
    assert not place.exists()


@pytest.mark.parametrize("target", ["/dev/null", "nowhere", "../victim"])
def test_a_link_in_the_place_of_ours_is_not_followed(roots: tuple[Path, Path], tmp_path: Path, target: str) -> None:
    place = roots[0] / "web.service.d"
    place.mkdir()
    victim = roots[0] / "victim"
    victim.write_text("untouched")
    link = place / "90-offheap.conf"
    link.symlink_to(target)
    drop_in_files.write(Changes(False), UNIT, wanted())
    assert link.is_file() and not link.is_symlink()
    link.unlink()
    link.symlink_to(target)
    drop_in_files.remove(Changes(False), UNIT)
    assert not os.path.lexists(link)
    assert victim.read_text() == "untouched"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    roots: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, wanted())
    before = tree(tmp_path)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UnitError, match=r"90-offheap\.conf cannot be written: No space left"):
        drop_in_files.write(Changes(False), UNIT, wanted(options="prof:true,narenas:1"))
    assert tree(tmp_path) == before
    remove(tmp_path)
    empty = tree(tmp_path)
    with pytest.raises(UnitError):
        drop_in_files.write(Changes(False), UNIT, wanted())
    assert tree(tmp_path) == empty, "nor a directory that was made for it"


def test_the_file_that_the_drop_in_names_is_there_first_and_goes_last(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit whose drop-in names a missing environment file does not start."""
    seen: list[set[str]] = []

    def watch(action: Callable[..., None]) -> Callable[..., None]:
        def acted(*arguments: str) -> None:
            action(*arguments)
            seen.append({path.name for path in (roots[0] / "web.service.d").iterdir()})

        return acted

    monkeypatch.setattr(os, "rename", watch(os.rename))
    drop_in_files.write(Changes(False), UNIT, wanted(file="A=1\n"))
    monkeypatch.setattr(os, "unlink", watch(os.unlink))
    drop_in_files.remove(Changes(False), UNIT)
    assert seen == [{"90-offheap.env"}, {"90-offheap.env", "90-offheap.conf"}, {"90-offheap.env"}, set()]


def test_a_full_disk_takes_no_file_from_the_drop_in_that_names_it(
    roots: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, wanted(file="A=1\n"))
    before = tree(tmp_path)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(UnitError, match="No space left"):
            drop_in_files.write(Changes(False), UNIT, wanted(options="prof:false"))
    assert tree(tmp_path) == before
    write(tmp_path, wanted(options="prof:false"))
    assert [path.name for path in (roots[0] / f"{UNIT}.d").iterdir()] == ["90-offheap.conf"]


def test_podmans_settings_come_and_go_with_the_drop_in(roots: tuple[Path, Path], tmp_path: Path) -> None:
    before = tree(tmp_path)
    plain = wanted()
    write(tmp_path, plain._replace(injection=plain.injection._replace(container="[containers]\n")))
    place = roots[0] / f"{UNIT}.d"
    assert sorted(path.name for path in place.iterdir()) == ["90-offheap.conf", "90-offheap.containers"]
    assert (place / "90-offheap.containers").stat().st_mode & 0o777 == 0o644, "Podman may be another user's"
    write(tmp_path, plain)
    assert [path.name for path in place.iterdir()] == ["90-offheap.conf"]
    write(tmp_path, plain._replace(injection=plain.injection._replace(container="[containers]\n")))
    run(tmp_path, lambda changes: drop_in_files.remove(changes, UNIT))
    assert tree(tmp_path) == before
