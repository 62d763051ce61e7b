# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What rules a preload out, seen in real processes and programs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, security_module, selinux
from ansible_collections.offheap.profiler.plugins.module_utils.unit import preload_obstacles
from ansible_collections.offheap.profiler.plugins.module_utils.unit.drop_in import Variable
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import unit

LIBRARIES = ["/opt/offheap/jemalloc/1/lib/libjemalloc.so.2", ""]
_SAYS = b"allow 0x%08x\ndeny 0x00000000\naudit 0x00000000\nquiet 0x00000000\n"
_NEW_OF = "void *{name}(unsigned long n) {{ return (void *) n; }}\n"


def check(pid: int, *variables: str) -> None:
    preload_obstacles.check(unit(ActiveState="active", MainPID=str(pid)), environment(*variables), [], LIBRARIES)


def environment(*names: str, value: str = "/none.so") -> dict[str, Variable]:
    return {name: Variable(value, "Environment", "/x") for name in names}


def test_a_plain_process(dynamic: Path) -> None:
    with programs.running(dynamic) as pid:
        check(pid)
    check(pid)  # it has ended


def test_an_audited_one(dynamic: Path) -> None:
    with programs.running(dynamic, env={"LD_AUDIT": ""}) as pid:
        refusal(lambda: check(pid), "audited", "LD_AUDIT", "allocator: own", "remove LD_AUDIT")
    refusal(lambda: preload_obstacles.check(unit(), environment("LD_AUDIT"), [], []), "audited", "probe.service")


def test_one_that_apparmor_does_not_let_load_it(dynamic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "security_label", lambda _pid: "/usr/sbin/probe (enforce)")
    says = {True: _SAYS % 0x4, False: b""}
    monkeypatch.setattr(security_module, "asked", lambda _path, question: says[question.endswith(b"so.2")])
    with programs.running(dynamic) as pid:
        refusal(lambda: check(pid), "confined", "/usr/sbin/probe (enforce)", LIBRARIES[0], "/etc/apparmor.d/local")


def test_one_that_selinux_does_not_let_dump(dynamic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    label, rule = "system_u:system_r:probe_t:s0", "(allow probe_t var_lib_t (dir (write)))"
    monkeypatch.setattr(procfs, "security_label", lambda _pid: label)
    known = {(label, str(dynamic), tuple(LIBRARIES), "probe.service"): [rule]}
    monkeypatch.setattr(
        selinux, "lines", lambda asked, program, libraries, name: known[asked, program, tuple(libraries), name]
    )
    with programs.running(dynamic) as pid:
        refusal(lambda: check(pid), "confined", label, rule, "semodule -i")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_one_that_the_kernel_started_in_secure_mode(tmp_path: Path) -> None:
    program = programs.compiled(tmp_path, "other")
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    with programs.running(program) as pid:
        program.chmod(0o755)  # so that only the process tells
        assert procfs.is_secure(pid)
        refusal(lambda: check(pid), "secure-mode", f"process {pid}", "AT_SECURE", "'noatsecure'")
        child = unit(ActiveState="active", MainPID=str(os.getpid()))
        refusal(lambda: preload_obstacles.check(child, {}, [pid], []), "secure-mode", f"process {pid}")


@pytest.mark.parametrize(("name", "symbol"), [("tcmalloc", "tc_malloc"), ("mimalloc", "mi_malloc")])
def test_one_with_another_malloc(tmp_path: Path, dynamic: Path, name: str, symbol: str) -> None:
    library = programs.library(tmp_path, f"lib{name}.so.4", _NEW_OF.format(name=symbol))
    linked = programs.compiled(tmp_path, "linked", programs.SLEEPS, "-Wl,--no-as-needed", str(library))
    inside = programs.compiled(tmp_path, "inside", programs.SLEEPS + _NEW_OF.format(name=symbol))
    for program in (linked, inside):
        refusal(
            lambda program=program: preload_obstacles.check_program("probe.service", str(program), elf.read(program)),  # type: ignore[misc]
            "other-malloc",
            f"uses {name} ({program})",
            "offheap_offered",
        )
    preload_obstacles.check_program("probe.service", str(dynamic), elf.read(dynamic))
    with programs.running(dynamic, env={"LD_PRELOAD": str(library)}) as pid:
        refusal(lambda: check(pid), "other-malloc", f"({library})", "allocator: own", "remove it from LD_PRELOAD")


def test_one_with_an_operator_new_that_would_stay_beside_ours(tmp_path: Path, dynamic: Path) -> None:
    """As oneTBB's proxy, scudo or Hoard, whatever it is called: half of the memory was unseen, and nothing said so."""
    both, new = _NEW_OF.format(name="malloc"), _NEW_OF.format(name="_Znwm")
    sources = {"libproxy.so.2": both + new, "libjemalloc.so.1": both + new, "libnew.so": new, "libhook.so": both}
    for name, source in sources.items():
        # Only its functions count, so those that cannot allocate are never called.
        library = programs.library(tmp_path, name, source, "-Wl,-Bsymbolic")
        with programs.running(dynamic, env={"LD_PRELOAD": str(library)}) as pid:
            if name != "libproxy.so.2":
                check(pid)
                continue
            refusal(lambda: check(pid), "other-malloc", f"uses libproxy ({library})", "allocator: own")
            one = unit(ActiveState="active", MainPID=str(pid))
            preload_obstacles.check(one, {}, [], [str(library)])  # it is ours


@pytest.mark.parametrize("replaces", [True, False])
def test_one_that_would_not_start_or_not_be_seen(tmp_path: Path, replaces: bool) -> None:
    """The first says so itself; the second was restarted, and had a profile in which nothing was sampled."""
    sanitized = programs.compiled(tmp_path, "sanitized", programs.SLEEPS, "-fsanitize=address")
    preloaded = subprocess.run(
        [sanitized],
        env={"LD_PRELOAD": programs.library(tmp_path, "libx.so", "int x;\n")},
        stderr=subprocess.PIPE,
        check=False,
    )
    assert b"does not come first" in preloaded.stderr
    own = programs.compiled(tmp_path, "own", programs.SLEEPS + _NEW_OF.format(name="malloc"), "-fno-builtin")
    for program, reason, why in ((sanitized, "sanitizer", "libasan"), (own, "allocator-linked-in", "comes before")):
        refusal(
            lambda program=program: preload_obstacles.check_program(  # type: ignore[misc]
                "probe.service", str(program), elf.read(program), replaces
            ),
            reason,
            str(program),
            why,
        )


def test_one_that_keeps_its_malloc_may_have_any(dynamic: Path, tmp_path: Path) -> None:
    library = programs.library(tmp_path, "libtcmalloc.so.4", _NEW_OF.format(name="tc_malloc"))
    for name, value in (("LD_PRELOAD", str(library)), ("LD_AUDIT", "/none.so")):
        with programs.running(dynamic, env={name: value}) as pid:
            for one in (unit(ActiveState="active", MainPID=str(pid)), unit(ActiveState="inactive")):
                variables = environment(name, value=value)
                preload_obstacles.check(one, variables, [pid], [], replaces=False)
                with pytest.raises(Refusal):
                    preload_obstacles.check(one, variables, [pid], [])


def test_a_program_in_go_is_told_where_its_heap_is(tmp_path: Path, dynamic: Path) -> None:
    """As the linker of Go does it: its mark is a section of its own."""
    mark = '__attribute__((section(".go.buildinfo"), used)) static const char mark[] = "Go";\n'
    program = programs.compiled(tmp_path, "node_exporter", programs.SLEEPS + mark)
    said = preload_obstacles.advice(str(program))
    assert said.startswith(f"{program} is a Go program") and "http://127.0.0.1:6060/debug/pprof/heap" in said
    assert preload_obstacles.advice(str(dynamic)) == ""
    assert preload_obstacles.advice(str(tmp_path / "gone")) == ""
