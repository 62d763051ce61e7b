# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which of a unit's programs is profiled, and who writes its dumps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import preload
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in, programs
from ansible_collections.offheap.profiler.plugins.module_utils.unit.programs import Owner
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import unit

NOBODY = 65534
WRAPPER, JAVA, SHELL = "/usr/bin/service-wrapper", "/usr/lib/jvm/bin/java", "/usr/bin/dash"
ROOT = Owner(0, 0)


class Seen(NamedTuple):
    """A process of the unit, as the kernel shows it: memory in MiB, age in seconds."""

    program: str | None
    size: int = 0
    age: float = 300.0
    uid: int = 0
    parent: int = 1
    swapped: int = 0


Unit = Callable[..., Service]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Unit:
    """A unit with these processes, with pids from 10; the first is the main one, unless MainPID says otherwise."""

    def run(*processes: Seen, lists: dict[str, list[str]] | None = None, **single: str) -> Service:
        def status(pid: int) -> dict[str, str]:
            one = processes[pid - 10]
            user = f"0\t{one.uid}\t0\t0"
            memory = {"RssAnon": f"{one.size << 10} kB", "VmSwap": f"{one.swapped << 10} kB"}
            return {"Uid": user, "Gid": user, "PPid": str(one.parent), **memory}

        monkeypatch.setattr(procfs, "status", status)
        monkeypatch.setattr(procfs, "exe", lambda pid: processes[pid - 10].program)
        monkeypatch.setattr(procfs, "start_time", lambda pid: time.time() - processes[pid - 10].age)
        monkeypatch.setattr(systemd, "processes", lambda _group: [*range(10, 10 + len(processes))])
        return unit("/bin/server", lists=lists, text={"MainPID": "10", "ActiveState": "active", **single})

    return run


# Which program


def test_the_program_that_a_launcher_has_started_where_it_holds_most(running: Unit) -> None:
    assert programs.executable(running(Seen(WRAPPER, 4), Seen(JAVA, 182))) == JAVA
    assert programs.executable(running(Seen(WRAPPER, 4), Seen(JAVA, 0, swapped=182))) == JAVA


def test_the_main_program_where_it_holds_as_much(running: Unit) -> None:
    assert programs.executable(running(Seen(WRAPPER, 90), Seen(JAVA, 90))) == WRAPPER
    assert programs.executable(running(Seen(WRAPPER, 90), Seen(JAVA, 60), Seen("/bin/helper", 60))) == WRAPPER
    assert programs.executable(running(Seen(WRAPPER, 4), Seen(WRAPPER, 182))) == WRAPPER


def test_one_that_comes_and_goes_is_not_there_to_stay(running: Unit) -> None:
    assert programs.executable(running(Seen(WRAPPER, 4, age=900), Seen(JAVA, 182, age=5))) == WRAPPER
    assert programs.executable(running(Seen(WRAPPER, 4, age=6), Seen(JAVA, 182, age=5))) == JAVA, "all has just begun"


def test_a_shell_is_none(running: Unit) -> None:
    assert programs.executable(running(Seen(SHELL, 900), Seen(JAVA, 182, age=5), Seen(WRAPPER, 4))) == JAVA
    refusal(
        lambda: programs.executable(running(Seen(SHELL, 1))), "unknown-executable", "through a shell", "Start it first"
    )


def test_what_is_profiled_remains_it_as_long_as_it_holds_a_quarter(running: Unit, tmp_path: Path) -> None:
    path = tmp_path / drop_in.NAME
    path.write_text(f'[Service]\nEnvironment="{preload.EXECUTABLE}={WRAPPER}"\n')
    ours = {"DropInPaths": [str(path)]}
    assert programs.executable(running(Seen(WRAPPER, 70), Seen(JAVA, 182), lists=ours)) == WRAPPER
    assert programs.executable(running(Seen(WRAPPER, 4), Seen(JAVA, 182), lists=ours)) == JAVA
    path.unlink()  # by a rollback that systemd has not heard of, since /run was full
    assert programs.executable(running(Seen(WRAPPER, 70), Seen(JAVA, 182), lists=ours)) == JAVA


def test_a_stopped_unit_is_known_by_its_command(tmp_path: Path) -> None:
    assert programs.executable(unit("/bin/cat")) == str(Path("/bin/cat").resolve())
    script = tmp_path / "start"
    script.write_text("#!/bin/sh\n")
    refusal(lambda: programs.executable(unit(str(script))), "unknown-executable", "name the program")


# What will be seen of it


def test_what_an_agent_will_see(running: Unit) -> None:
    found = programs.seen(running(Seen(WRAPPER, 4), Seen(JAVA, 532)), JAVA, children=False)
    assert [(one["executable"], one["rss_with_agent"] >> 20) for one in found] == [(JAVA, 532), (WRAPPER, 0)]
    assert programs.sentence(found, JAVA) == f"{JAVA} is profiled: 1 process, 532.0 of the unit's 536.0 MiB"


def test_what_it_will_not(running: Unit) -> None:
    service = running(Seen(WRAPPER, 4), Seen(WRAPPER, 100, parent=10), Seen(WRAPPER, 100, parent=10), Seen(JAVA, 50))
    told = programs.sentence(programs.seen(service, WRAPPER, children=False), WRAPPER)
    assert told == (
        f"{WRAPPER} is profiled: 1 process, 4.0 of the unit's 254.0 MiB. Not profiled, with 200.0 MiB: 2 more of its"
        " processes"
    )
    told = programs.sentence(programs.seen(service, WRAPPER, children=True), WRAPPER)
    assert told == f"{WRAPPER} is profiled: 3 processes, 204.0 of the unit's 254.0 MiB"
    told = programs.sentence(programs.seen(service, JAVA, children=False), JAVA)
    assert told.endswith(f"50.0 of the unit's 254.0 MiB. Not profiled, with 204.0 MiB: {WRAPPER}")
    assert programs.sentence([], JAVA) == ""


# Users


def test_owner() -> None:
    assert programs.owner(unit()) == Owner(0, 0)
    assert programs.owner(unit(User="nobody")) == Owner(NOBODY, NOBODY)
    assert programs.owner(unit(User="nobody", Group="daemon")) == Owner(NOBODY, 1)
    assert programs.owner(unit(User=str(NOBODY), Group="4711")) == Owner(NOBODY, 4711)


def test_users_and_groups_that_do_not_exist() -> None:
    refusal(lambda: programs.owner(unit(User="nosuchuser")), "no-such-user", "nosuchuser", "create it")
    refusal(lambda: programs.owner(unit(User="987654")), "no-such-user", "correct User=")
    refusal(lambda: programs.owner(unit(Group="nosuchgroup")), "no-such-group", "nosuchgroup", "correct Group=")


def test_who_writes_the_dumps(running: Unit) -> None:
    """A service that systemd starts as root may have changed its user since; another's user is what systemd made it."""
    service = running(Seen(WRAPPER, uid=33))
    assert programs.writers(service, ROOT, WRAPPER) == [(33, 33)]
    assert programs.writers(service, Owner(NOBODY, NOBODY), WRAPPER) == [(NOBODY, NOBODY)]
    assert programs.writers(unit("/bin/true"), ROOT, "/bin/true") == [ROOT], "nobody can know it before it runs"


def test_workers_of_one_user_with_several_groups_need_one_owner(running: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    service = running(*(Seen(WRAPPER, uid=uid) for uid in (0, 33, 33)))
    family = programs.of(service, WRAPPER)
    other = family[2]._replace(user=Owner(33, 44))
    monkeypatch.setattr(programs, "of", lambda _service, _program: [*family[:2], other])
    assert programs.writers(service, ROOT, WRAPPER, children=True) == [Owner(33, 33)]


def test_the_user_of_what_a_launcher_has_started_writes_them(running: Unit) -> None:
    assert programs.writers(running(Seen(WRAPPER), Seen(JAVA, uid=33)), ROOT, JAVA) == [(33, 33)]


@pytest.mark.parametrize(
    ("users", "paths", "expected"),
    [
        ((0, 33, 33), (WRAPPER,) * 3, [33]),
        ((0, 0, 33), (WRAPPER,) * 3, [33]),
        ((0, 44, 33, 44), (WRAPPER,) * 4, [0, 33, 44]),
        ((0, 33, 44), (WRAPPER, WRAPPER, "/bin/logger"), [33]),
        ((0, 44), (WRAPPER, "/bin/logger"), [0]),
        ((33, 44), (WRAPPER,) * 2, [33]),
    ],
)
def test_the_spool_belongs_to_workers_that_gave_up_their_rights(
    running: Unit, users: tuple[int, ...], paths: tuple[str, ...], expected: list[int]
) -> None:
    """Root can write there too, but they not where root can. Of several users none can be chosen, so it is root's."""
    service = running(*(Seen(path, uid=uid) for path, uid in zip(paths, users, strict=True)))
    assert programs.writers(service, ROOT, WRAPPER, children=True) == [(uid, uid) for uid in expected]
    assert programs.writers(service, ROOT, WRAPPER) == [(users[0], users[0])]


@pytest.mark.parametrize(
    ("main_pid", "users", "paths", "expected"),
    [
        ("10", (0, 33, 33), (WRAPPER,) * 3, True),
        ("10", (33, 33), (WRAPPER,) * 2, True),
        ("0", (33, 33), (WRAPPER,) * 2, True),
        ("10", (0, 33, 44), (WRAPPER,) * 3, True),
        ("10", (33, 33, 44), (WRAPPER,) * 3, False),
        ("10", (0, 33), (WRAPPER, "/bin/logger"), False),
        ("10", (33,), (WRAPPER,), False),
    ],
)
def test_workers_are_profiled_unless_the_spool_cannot_be_theirs(
    running: Unit, main_pid: str, users: tuple[int, ...], paths: tuple[str, ...], expected: bool
) -> None:
    service = running(*(Seen(path, uid=uid) for path, uid in zip(paths, users, strict=True)), MainPID=main_pid)
    assert programs.has_workers(service, WRAPPER) is expected


def test_workers_of_several_users_in_a_container_are_not(running: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sockets could not be seen from outside."""
    monkeypatch.setattr(Service, "contained", lambda _self: [11])
    assert programs.has_workers(running(*(Seen(WRAPPER, uid=uid) for uid in (0, 33, 33))), WRAPPER)
    assert not programs.has_workers(running(*(Seen(WRAPPER, uid=uid) for uid in (0, 33, 44))), WRAPPER)


def test_the_spool_of_a_unit_without_a_main_process_belongs_to_its_program(running: Unit) -> None:
    """systemd knows no main process of what it makes from /etc/init.d."""
    assert programs.writers(running(Seen(WRAPPER, uid=33), MainPID="0"), ROOT, WRAPPER) == [(33, 33)]
