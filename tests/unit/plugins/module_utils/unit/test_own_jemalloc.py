# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A program's own jemalloc: how it is configured is read from real programs, and what it then says is heard."""

from __future__ import annotations

import glob
import os
import subprocess
import time
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import health, own_jemalloc
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, unit

# Keeps the compiler from leaving them out.
TEXT = '__attribute__((used)) static const char text{number}[] = "{text}";\n'
PROFILER = "<jemalloc>: Run jeprof on dump output for leak detail"
LEAKS = """
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    for (int i = 0; i < 400; i++)
        ((char *)malloc(50000))[0] = 1;
    sleep(60);
    return 0;
}
"""


def with_texts(directory: Path, *texts: str) -> str:
    source = "".join(TEXT.format(number=number, text=text) for number, text in enumerate(texts))
    return str(programs.compiled(directory, "program", source + programs.SLEEPS))


@pytest.fixture(scope="module")
def real(directory: Path) -> Path:
    """A program with Debian's jemalloc in it."""
    (archive,) = glob.glob("/usr/lib/*/libjemalloc_pic.a")
    return programs.compiled(directory, "real", LEAKS, archive, "-lm", "-lpthread", "-lstdc++", "-ldl")


def test_a_real_one_is_switched_on_by_what_is_found(real: Path, tmp_path: Path) -> None:
    for flags in ([], ["--strip-all"]):
        subprocess.run(["objcopy", *flags, real, tmp_path / "program"], check=True)
        assert own_jemalloc.check(str(tmp_path / "program"), unit()) == "MALLOC_CONF"
    environment = {"MALLOC_CONF": f"prof:true,lg_prof_sample:12,lg_prof_interval:22,prof_prefix:{tmp_path}/jeprof"}
    with programs.running(real, env=environment):
        deadline = time.monotonic() + 10
        while not list(tmp_path.glob("jeprof.*.heap")):
            assert time.monotonic() < deadline, "it wrote no dump"
            time.sleep(0.02)


def test_the_name_of_the_variable_has_its_prefix(tmp_path: Path) -> None:
    program = with_texts(tmp_path, "_RJEM_MALLOC_CONF", PROFILER, "see MALLOC_CONF for more")
    assert own_jemalloc.check(program, unit()) == "_RJEM_MALLOC_CONF"


@pytest.mark.parametrize(
    ("texts", "reason", "way_out"),
    [
        ([PROFILER], "no-own-jemalloc", "Leave profiled_service_mode at profile"),
        (["MALLOC_CONF"], "own-jemalloc-without-profiler", "--enable-prof"),
        (["_RJEM_MALLOC_CONF", "MALLOC_CONF", PROFILER], "two-own-jemallocs", "MALLOC_CONF and _RJEM_MALLOC_CONF"),
    ],
)
def test_what_cannot_be_switched_on(tmp_path: Path, texts: list[str], reason: str, way_out: str) -> None:
    program = with_texts(tmp_path, *texts)
    refusal(lambda: own_jemalloc.check(program, unit()), reason, program, way_out)


def test_what_is_not_dynamically_linked_to_glibc(tmp_path: Path) -> None:
    source = TEXT.format(number=0, text="MALLOC_CONF") + TEXT.format(number=1, text=PROFILER) + programs.SLEEPS
    static = programs.compiled(tmp_path, "static", source, "-static")
    refusal(lambda: own_jemalloc.check(str(static), unit()), "musl", "can deadlock")
    (tmp_path / "script").write_text("#!/bin/sh\n")
    refusal(lambda: own_jemalloc.check(str(tmp_path / "script"), unit()), "not-readable", "cannot be examined")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_program_that_the_kernel_trusts_more(tmp_path: Path) -> None:
    program = with_texts(tmp_path, "MALLOC_CONF", PROFILER)
    os.chmod(program, 0o4755)
    refusal(lambda: own_jemalloc.check(program, unit(User="nobody")), "setuid", "NoNewPrivileges")


def test_what_it_says_at_its_start_is_heard(
    tmp_path: Path, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(systemd, "journal", lambda *which: said if which == ("_SYSTEMD_INVOCATION_ID=7",) else [])
    environment = {"_RJEM_MALLOC_CONF": "prof:true", "OFFHEAP_UNIT": "web.service"}
    with programs.running(programs.compiled(tmp_path, "sleeps"), env=environment) as pid:
        one = unit(MainPID=str(pid), InvocationID="7")
        own_jemalloc.see(one, environment)
        said.append("Jan 1 router[7]: <jemalloc>: Invalid conf pair: prof:true")
        with pytest.raises(health.Unhealthy, match=r"does not know what it was told: .*prof:true"):
            own_jemalloc.see(one, environment)
        with pytest.raises(health.Unhealthy, match="does not have our _RJEM_MALLOC_CONF, OFFHEAP_UNIT: a start script"):
            own_jemalloc.see(one, {**environment, "_RJEM_MALLOC_CONF": "prof:true,lg_prof_interval:30"})
