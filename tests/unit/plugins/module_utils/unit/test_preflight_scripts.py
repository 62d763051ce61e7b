# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which start scripts are refused because they discard the preload, and which are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in, preflight
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import unit

LIBRARY = "/opt/offheap/jemalloc/none/lib/libjemalloc.so.2"
PLAIN = drop_in.Environment({}, [])


@pytest.mark.parametrize("word", ["env ", "unset ", "env -u "])
def test_a_script_of_one_word_takes_no_hours(tmp_path: Path, word: str) -> None:
    """It may belong to the service's user, and root reads it."""
    start = programs.script(tmp_path, "start", f"#!/bin/sh\n{word * 100_000}\n")
    preflight.check_wrappers(unit(start), LIBRARY, PLAIN)


@pytest.mark.parametrize(
    "line",
    [
        "export LD_PRELOAD=/usr/lib/liblegacy.so",
        "LD_PRELOAD= exec java",
        'LD_PRELOAD=""; exec java',
        "[ $# -gt 0 ] && export LD_PRELOAD=/a.so",
        'x=${#list}; LD_PRELOAD="/a.so /b.so" exec java',
        "  unset JAVA_OPTS LD_PRELOAD",
        "unset -v LD_PRELOAD",
        "export MALLOC_CONF=narenas:1",
        "MALLOC_CONF=$LD_PRELOAD exec java",
        "exec env -i PATH=/bin java",
        "exec env -u LD_PRELOAD java",
        "exec env -C / -uLD_PRELOAD java",
        "exec env A=1 --unset=LD_PRELOAD java",
        'LD_PRELOAD="$LD_PRELOAD:/a.so"; LD_PRELOAD=/b.so',
    ],
)
def test_a_script_that_takes_the_preload_away(tmp_path: Path, line: str) -> None:
    start = programs.script(tmp_path, "start", f"#!/bin/sh\n# comment\n{line}\nexec java\n")
    for service in (unit(start), unit("/bin/sh", arguments=[f"/bin/sh {start} --fast"])):
        message = refusal(
            lambda service=service: preflight.check_wrappers(service, LIBRARY, PLAIN),  # type: ignore[misc]
            "wrapper-overwrites-preload",
            str(start),
            'LD_PRELOAD="its.so:$LD_PRELOAD"',
            f"CASSANDRA_LIBJEMALLOC={LIBRARY}",
        )
        assert "comment" not in message


@pytest.mark.parametrize(
    "line",
    [
        "exec java -jar x.jar",
        'export LD_PRELOAD="/a.so:$LD_PRELOAD"',
        'export LD_PRELOAD="/a.so $LD_PRELOAD"',
        "LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}/a.so exec java",
        "LD_PRELOAD=$LD_PRELOAD:/a.so exec java",
        "# LD_PRELOAD=/a.so",
        "exec java # LD_PRELOAD=/a.so",
        "MY_LD_PRELOAD=/a.so",
        'export MALLOC_CONF="narenas:1,$MALLOC_CONF"',
        'echo "$LD_PRELOAD"',
        "unset JAVA_OPTS; exec java",
        'unset JAVA_OPTS\nexport LD_PRELOAD="/a.so:$LD_PRELOAD"',
        "env A=1 x\ny -u LD_PRELOAD",
        "env JAVA_HOME=/x java",
        "# env -i",
    ],
)
def test_a_script_that_keeps_the_preload(tmp_path: Path, line: str) -> None:
    start = programs.script(tmp_path, "start", f"#!/bin/sh\n{line}\nexec java\n")
    preflight.check_wrappers(unit(start, arguments=[str(start)]), LIBRARY, PLAIN)


def test_a_shell_command_in_the_unit_itself() -> None:
    overwriting = unit("/bin/sh", arguments=["/bin/sh -c LD_PRELOAD=/a.so exec java"])
    refusal(
        lambda: preflight.check_wrappers(overwriting, LIBRARY, PLAIN),
        "wrapper-overwrites-preload",
        "line 1 of its ExecStart= contains 'LD_PRELOAD=/a.so'",
        "CASSANDRA",
    )
    preflight.check_wrappers(unit("/bin/sh", arguments=["/bin/sh -c exec java"]), LIBRARY, PLAIN)


@pytest.mark.parametrize(
    "command", ["/bin/su - app", "su -s /bin/sh -l app", "/usr/sbin/runuser --login app", "sudo app"]
)
def test_a_login_has_an_environment_of_its_own(tmp_path: Path, command: str) -> None:
    line = f"{command} -c /srv/app/bin/app"
    start = programs.script(tmp_path, "start", f"#!/bin/sh\ncd /\n  exec {line}\n")
    for service in (unit("/bin/su", arguments=[line]), unit(start)):
        refusal(
            lambda service=service: preflight.check_wrappers(service, LIBRARY, PLAIN),  # type: ignore[misc]
            "wrapper-overwrites-preload",
            f"contains '{command.removesuffix(' app')}'",
            "Set User= in the unit",
        )


@pytest.mark.parametrize(
    "line",
    [
        "/bin/su app -c /srv/app -l",
        "/usr/sbin/runuser -u app -- /srv/app -l x",
        "/bin/su app -c /srv/app - x",
        "su -l app -w LD_PRELOAD,MALLOC_CONF -c /srv/app",
        "su - -w LD_PRELOAD,MALLOC_CONF app",
        "/srv/su-perb - x",
        "/srv/sudoku",
    ],
)
def test_what_begins_no_login(line: str) -> None:
    preflight.check_wrappers(unit("/bin/su", arguments=[line]), LIBRARY, PLAIN)


def test_programs_and_missing_files_are_no_scripts(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF LD_PRELOAD=/a.so")
    os.mkfifo(tmp_path / "pipe")
    arguments = [f"{binary} {tmp_path} {tmp_path}/pipe /dev/zero"]
    preflight.check_wrappers(unit(binary, "/nowhere/start", arguments=arguments), LIBRARY, PLAIN)


def test_a_preload_that_no_unit_file_sets(dynamic: Path, library: Path) -> None:
    """Whatever sets it will set it again after our restart."""
    with programs.running(dynamic, env={"LD_PRELOAD": str(library)}) as pid:
        running = {"ActiveState": "active", "MainPID": str(pid)}
        refusal(
            lambda: preflight.check_wrappers(unit(dynamic, text=running), LIBRARY, PLAIN),
            "wrapper-overwrites-preload",
            f"LD_PRELOAD={library}, which no unit file sets",
            "pass our library",
        )
        known = drop_in.Environment({"LD_PRELOAD": drop_in.Variable(str(library), "Environment", "")}, [])
        preflight.check_wrappers(unit(dynamic, text=running), LIBRARY, known)
        ours = {"DropInPaths": ["/etc/systemd/system/probe.service.d/90-offheap.conf"]}
        preflight.check_wrappers(unit(dynamic, lists=ours, text=running), LIBRARY, PLAIN)
    preflight.check_wrappers(unit(dynamic, text=running), LIBRARY, PLAIN)
