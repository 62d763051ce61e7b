# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What would die under the preload dies in a process aside, and only that is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host.systemd import Assignment
from ansible_collections.offheap.profiler.plugins.module_utils.unit import rehearsal
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, unit

# Dies in its constructor where something is preloaded, or always.
DIES = """#include <stdlib.h>
__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("%s");
    if (at && *at == '/') abort();
}
"""
# As where systemd ends the shell and what hangs in it, since their time is over.
HANGS = """#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("%s");
    if (at && *at == '/') { kill(getppid(), SIGKILL); _exit(0); }
}
"""
# In the place of systemd-run: notes the properties, and runs the command.
RUNS = """#!/bin/sh
while [ "$1" != -- ]; do echo "$1" >>{noted}; shift; done
shift
exec "$@"
"""
Check = Callable[[int, Path], None]


@pytest.fixture
def preload(tmp_path: Path) -> Path:
    return programs.library(tmp_path, "libpreloaded.so")


@pytest.fixture
def check(
    systemctl: Systemctl, preload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusting: None
) -> Iterator[Check]:
    """Rehearse with a running process and its program."""
    (tmp_path / "aside").mkdir()
    programs.script(tmp_path / "aside", "systemd-run", RUNS.format(noted=tmp_path / "noted"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'aside'}:{os.environ['PATH']}")

    def run(pid: int, program: Path) -> None:
        one = unit(ActiveState="active", MainPID=str(pid))
        own = [
            Assignment("User", "nobody", "/x"),
            Assignment("ExecStart", "/x", "/x"),
            Assignment("PrivateTmp", "yes", "/x"),
            Assignment("ReadOnlyPaths", "/srv/%m", "/x"),  # only systemd knows what that is
        ]
        rehearsal.check(one, str(program), {"LD_PRELOAD": str(preload), "OFFHEAP_UNIT": "x"}, own)

    yield run


def linked(directory: Path, variable: str, name: str = "libdies.so", source: str = DIES) -> Path:
    """A program with a library that dies where the variable is set."""
    library = programs.library(directory, name, source % variable)
    return programs.compiled(directory, "linked", programs.SLEEPS, "-Wl,--no-as-needed", str(library))


def test_a_jemalloc_without_pvalloc_is_none_that_it_dies_of(check: Check, preload: Path, tmp_path: Path) -> None:
    """As distributions have it, whose free takes no memory of the C library's."""
    found = sorted(Path("/usr/lib").glob("*/libjemalloc.so.2"))
    if not found:
        pytest.skip("no jemalloc of the distribution's (apt-get install libjemalloc2)")
    preload.write_bytes(found[0].read_bytes())
    program = linked(tmp_path, "NOTHING")
    with programs.running(program) as pid:
        check(pid, program)


def test_what_dies_under_the_preload_alone_is_refused(check: Check, tmp_path: Path) -> None:
    program = linked(tmp_path, "LD_PRELOAD")
    with programs.running(program) as pid:
        refusal(
            lambda: check(pid, program),
            "dies-in-rehearsal",
            "died when it was started",
            "without the preload it did not",
            "trace_live",
        )


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "PATH"])
def test_what_hangs_under_the_preload_alone_is_refused(check: Check, tmp_path: Path, variable: str) -> None:
    """As libfaketime, whose clock jemalloc reads while it is made ready: the service spun at its start."""
    program = linked(tmp_path, variable, source=HANGS)
    with programs.running(program, env={}) as pid:
        if variable == "PATH":
            check(pid, program)  # it hangs anyhow
        else:
            refusal(lambda: check(pid, program), "dies-in-rehearsal", "hung when it was started")


def test_what_the_preloaded_one_stands_for_is_not_loaded(check: Check, preload: Path, tmp_path: Path) -> None:
    """As where a program is linked with the system's jemalloc."""
    (tmp_path / "other").mkdir()
    program = linked(tmp_path / "other", "LD_PRELOAD", preload.name)
    with programs.running(program) as pid:
        check(pid, program)


def test_what_dies_anyhow_is_not_ours_to_refuse(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = linked(tmp_path, "PATH")
    with programs.running(program, env={}) as pid:
        check(pid, program)


def test_what_bears_it_is_let_pass(check: Check, dynamic: Path, tmp_path: Path) -> None:
    with programs.running(dynamic) as pid:
        check(pid, dynamic)
    noted = (tmp_path / "noted").read_text().splitlines()
    assert {"--property=User=nobody", "--property=PrivateTmp=yes"} <= set(noted) and not any(
        "Exec" in one for one in noted
    )


def test_what_cannot_be_rehearsed_is_let_pass(check: Check, tmp_path: Path) -> None:
    program = linked(tmp_path, "LD_PRELOAD")
    with programs.running(program) as pid:
        programs.script(tmp_path / "aside", "systemd-run", "#!/bin/sh\nexit 1\n")
        check(pid, program)
    check(pid, program)  # it has ended


@pytest.mark.parametrize(
    ("told", "where"),
    [
        (["starts", "ended 139"], "was started"),
        (["starts", "ended 0", "opened /x.so", "ended 134"], "opened /x.so"),
        (["starts", "ended 127", "opened /x.so", "allocates", "ended 139"], "allocated and freed"),
        (["starts", "ended 127", "opened /x.so", "allocates", "ended 1"], ""),
        (["starts"], "was started"),
        (["starts", "ended 0", "opened /x.so"], "opened /x.so"),
        ([], ""),
    ],
)
def test_where_a_signal_ended_it(told: list[str], where: str) -> None:
    assert rehearsal._death(told) == where


def test_the_agent_alone_samples_while_it_rehearses(check: Check, tmp_path: Path) -> None:
    """What it does to the entries of what the program loads is done there, too, and nowhere without it."""
    program = linked(tmp_path, "OFFHEAP_PREFIX")
    with programs.running(program) as pid:
        check(pid, program)
        one = unit(ActiveState="active", MainPID=str(pid))
        environment = {"LD_PRELOAD": str(tmp_path / "libpreloaded.so"), "OFFHEAP_PREFIX": "/spool/jeprof"}
        refusal(lambda: rehearsal.check(one, str(program), environment, []), "dies-in-rehearsal", "libdies.so")
