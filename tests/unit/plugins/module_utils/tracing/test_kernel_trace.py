# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""memleak and perf on the running kernel trace a process that is no JVM, and leave nothing behind, whoever dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import process_allocators
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory as spool
from ansible_collections.offheap.profiler.plugins.module_utils.spool import listing, provenance
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import budget, kernel_trace
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Ended, Wanted
from ansible_collections.offheap.profiler.plugins.modules import trace_live
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.tracing.conftest import wait
from ansible_collections.offheap.profiler.tests.unit.strategies import kernel_tools

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets only root watch")

Run = Callable[..., dict[str, Any]]
# Two million allocations a second, if nobody watches.
BUSY = """\
#include <stdlib.h>
int main(void) { for (;;) { void *volatile block = malloc(64); free(block); } }
"""
WINDOW = 5


@pytest.fixture
def program(tmp_path: Path) -> Iterator[kernel_tools.Told]:
    with kernel_tools.running(tmp_path) as running:
        yield running


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "busy.c").write_text(BUSY)
    subprocess.run(["gcc", "-O1", "-fno-builtin", "-o", tmp_path / "busy", tmp_path / "busy.c"], check=True)
    with subprocess.Popen([tmp_path / "busy"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "spools"
    monkeypatch.setattr(places, "SPOOLS", str(directory))
    root = spool.Root
    monkeypatch.setattr(spool, "Root", lambda path=str(directory): root(path))
    for name, value in kernel_tools.headers(tmp_path).items():
        monkeypatch.setenv(name, value)
    return directory


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's ways need no long look."""
    monkeypatch.setattr(budget, "BEFORE", 0.5)
    monkeypatch.setattr(kernel_trace, "_BEFORE", 0.5)


@pytest.fixture
def run(systemctl: Systemctl, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the module for a unit with these processes."""

    def go(pids: list[int], check: bool = False, **arguments: Any) -> dict[str, Any]:
        systemctl.states(shown("/usr/bin/app", Id="app.service", ActiveState="active", ControlGroup="/app.service"))
        systemctl.processes("/app.service", *pids)
        return run_module(trace_live.main, monkeypatch, capsys, check, unit="app", window=WINDOW, **arguments)

    return go


def _read(spools: Path, names: list[str]) -> list[Records]:
    found = listing.find(str(spools), [], 1 << 28, 10, provenance.Examiner())
    assert [capture.name for capture in found.captures] == names
    assert len(found.processes) == 1
    return [detect.parse((spools / "app.service" / name).read_bytes(), name, Told()) for name in names]


def _through(function: str, records: Records) -> int:
    stacks = zip(records.stacks(), records.counts.bytes, strict=True)
    return sum(size for stack, size in stacks if any(records.names[place].function == function for place in stack))


@contextmanager
def _meanwhile(program: kernel_tools.Told, what: str, count: int, pause: float = 1) -> Iterator[None]:
    """Have the program do that each second, or more often."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(pause):
            program.do(what, count)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _runs(tool: str, pid: int) -> list[int]:
    """Processes of the tool that watch this one."""
    found = []
    for own in procfs.pids():
        try:
            words = procfs.cmdline(own)
        except procfs.ProcfsError:
            continue
        if any(tool in word for word in words[:2]) and str(pid) in words:
            found.append(own)
    return found


@pytest.mark.usefixtures("briefly")
@pytest.mark.slow
def test_memleak_says_what_stays(run: Run, program: kernel_tools.Told, spools: Path) -> None:
    with _meanwhile(program, "l", 1000):
        result = run([os.getpid(), program.pid], pid=program.pid, source="memleak", windows=3, max_cost=1000)
    assert (result.get("ended"), result["source"], result["pid"]) == ("", "memleak", program.pid), result
    windows = _read(spools, result["dumps"])
    assert len(windows) == 3
    assert all(records.measure is Measure.LIVE for records in windows)
    leaked = [_through("leak", records) for records in windows]
    assert leaked[0] < leaked[1] < leaked[2], "all begin with the trace"
    assert leaked[2] - leaked[0] >= 3 * 1000 * 1000, "a thousand blocks a second, for ten seconds"


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_perf_says_what_came(run: Run, program: kernel_tools.Told, spools: Path) -> None:
    with _meanwhile(program, "g", 500):
        result = run([program.pid], source="perf", windows=2)
    assert (result.get("ended"), result.get("source")) == ("", "perf"), result
    windows = _read(spools, result["dumps"])
    assert len(windows) == 2
    for records in windows:
        assert records.measure is Measure.GROWN
        assert _through("touch", records) >= 500 * 4096, "each window has its own"


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_perf_finds_who_called_a_library(run: Run, program: kernel_tools.Told, spools: Path) -> None:
    """malloc touches most pages first, and the C library has no frame pointers."""
    with _meanwhile(program, "l", 2000):
        result = run([program.pid], source="perf", windows=1)
    (records,) = _read(spools, result["dumps"])
    assert _through("leak", records) >= 0.8 * records.total.bytes > 4 << 20


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_perf_records_less_where_much_comes_at_once(run: Run, program: kernel_tools.Told, spools: Path) -> None:
    with _meanwhile(program, "g", 5_000, pause=0.1):  # so that some comes while the rate is looked at
        result = run([program.pid], source="perf", windows=1)
    assert result["ended"] == "", result
    (records,) = _read(spools, result["dumps"])
    assert records.sampling.interval > 16 * 4096
    assert _through("touch", records) >= 0.9 * 5_000 * 4096


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_perf_is_tried_again_when_it_did_not_begin(
    run: Run, program: kernel_tools.Told, tmp_path: Path, monkeypatch: Any
) -> None:
    tool, failed = tmp_path / "perf", tmp_path / "failed"
    perf = shutil.which("perf")
    tool.write_text(
        f'#!/bin/sh\n[ $1 = script ] || [ -e {failed} ] || {{ touch {failed}; exit 255; }}\nexec {perf} "$@"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setattr(kernel_trace, "_found", lambda _source: str(tool))
    monkeypatch.setattr(kernel_trace, "_TRIES", 3)
    with _meanwhile(program, "g", 500):
        result = run([program.pid], source="perf", windows=1)
    assert result.get("ended") == "" and len(result["dumps"]) == 1, result
    failed.unlink()
    tool.write_text("#!/bin/sh\nexit 255\n")
    result = run([program.pid], source="perf", windows=1)
    assert result["failed"] and "perf has ended with status 255" in result["msg"]


def test_auto_takes_a_tool_where_there_is_no_jvm(run: Run, program: kernel_tools.Told, spools: Path) -> None:
    result = run([program.pid], check=True, windows=1)
    assert (result["source"], result["dumps"], result["release"]) == ("memleak", [], 0)
    assert not spools.exists()


def test_perf_is_taken_where_memleak_lacks_the_headers_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = {"memleak": "memleak", "perf": "perf"}
    monkeypatch.setattr(kernel_trace, "_found", lambda source: tools.get(source, ""))
    monkeypatch.setattr(kernel_trace, "_HEADERS", (str(tmp_path / "build"),))
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    assert kernel_trace.available() == "perf"
    del tools["perf"]
    assert kernel_trace.available() == "memleak", "which says what it lacks"
    tools["perf"] = "perf"
    (tmp_path / "build").mkdir()
    assert kernel_trace.available() == "memleak"


@pytest.mark.slow
def test_the_budget_ends_what_a_service_cannot_bear(run: Run, busy: int, spools: Path) -> None:
    result = run([busy], source="memleak", windows=60)
    assert "more CPU time, and 5 % are allowed (max_cost)" in result["ended"]
    assert not _runs("memleak", busy), "it has ended"
    assert _probes() == []


def _probes() -> list[str]:
    """The uprobes that the kernel has now."""
    events = Path("/sys/kernel/tracing/uprobe_events")
    return events.read_text().splitlines() if events.exists() else []


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_perf_watches_with_one_thread(run: Run, program: kernel_tools.Told, spools: Path) -> None:
    """A second one, for BPF programs, takes a whole CPU where threads of the process come and go."""
    seen, ended = set(), threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            for own in _runs("perf", program.pid):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    seen.add(len(os.listdir(f"/proc/{own}/task")))

    thread = threading.Thread(target=look)
    thread.start()
    result = run([program.pid], source="perf", windows=1)
    ended.set()
    thread.join()
    assert not result.get("failed"), result
    assert seen == {1}


@pytest.mark.slow
@pytest.mark.usefixtures("briefly")
def test_a_process_that_ends(run: Run, program: kernel_tools.Told, spools: Path) -> None:
    """What it did since the last window is what one wants to see of a process that was killed."""

    def end() -> None:
        wait(lambda: bool(_runs("perf", program.pid)), "perf runs")
        for _time in range(8):
            program.do("g", 500)
            time.sleep(0.4)
        os.kill(program.pid, signal.SIGKILL)

    thread = threading.Thread(target=end)
    thread.start()
    result = run([program.pid], source="perf", windows=60)
    thread.join()
    assert "the process has ended" in result.get("ended", ""), result
    last = spools / "app.service" / result["dumps"][-1]
    assert _through("touch", detect.parse(last.read_bytes(), "x", Told())) >= 500 * 4096


# Traces a process until it is killed.
_TRACER = """
import sys, time
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import kernel_trace
said = open("/dev/null", "w")
with kernel_trace._running(sys.argv[1:], said.fileno(), said.fileno()) as tool:
    print(tool.pid, flush=True)
    time.sleep(600)
"""


def test_who_kills_us_ends_the_tool(program: kernel_tools.Told) -> None:
    perf = shutil.which("perf")
    assert perf
    command = [perf, "record", "-q", "-e", "page-faults", "-g", "-p", str(program.pid), "-o", "-"]
    tracing = [sys.executable, "-c", _TRACER, *command]
    with subprocess.Popen(tracing, cwd=COLLECTIONS, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        tool = int(tracer.stdout.readline())
        wait(lambda: bool(_runs("perf", program.pid)), "perf runs")
        assert tool in _runs("perf", program.pid)
        tracer.kill()
    wait(lambda: not _runs("perf", program.pid), "perf has ended")


@pytest.mark.parametrize("source", ["memleak", "perf"])
def test_a_tool_that_is_missing(source: str, run: Run, program: kernel_tools.Told, monkeypatch: Any) -> None:
    monkeypatch.setattr(kernel_trace, "_PATH", "/nowhere")
    result = run([program.pid], source=source)
    assert result["failed"] and f"{source} is not installed here" in result["msg"] and "Debian" in result["msg"]
    result = run([program.pid])
    assert result["failed"] and "neither memleak nor perf is installed here" in result["msg"]


def test_a_tool_that_others_could_replace(
    run: Run, program: kernel_tools.Told, tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "perf").write_text("#!/bin/sh\n")
    (tmp_path / "perf").chmod(0o777)
    monkeypatch.setattr(kernel_trace, "_PATH", str(tmp_path))
    assert "perf is not installed here" in run([program.pid], source="perf")["msg"]


def test_what_a_tool_says_when_it_fails(
    run: Run, program: kernel_tools.Told, tmp_path: Path, spools: Path, monkeypatch: Any
) -> None:
    tool = tmp_path / "memleak"
    tool.write_text("#!/bin/sh\necho 'Unable to find kernel headers. Try rebuilding' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(kernel_trace, "_found", lambda _source: str(tool))
    monkeypatch.setattr(budget, "BEFORE", 0.1)
    result = run([program.pid], source="memleak")
    release = os.uname().release
    assert result["failed"] and result["msg"].startswith("memleak needs the headers of the running kernel. "), result
    assert f" install linux-headers-{release}; Fedora, RHEL: kernel-devel-{release}. perf needs none" in result["msg"]
    assert not spools.exists(), "no dump came, so no spool stays"


def test_the_copy_that_perf_leaves_is_removed_and_no_other(
    run: Run, program: kernel_tools.Told, tmp_path: Path, monkeypatch: Any
) -> None:
    """It is named as perf names it; so is that of another perf, which runs meanwhile."""
    tool, copies = tmp_path / "perf", tmp_path / "copies"
    copies.mkdir()
    (copies / "perf-vdso.so-aaaaaa").touch()
    tool.write_text(
        f"#!/bin/sh\n[ $1 = script ] && : > {copies}/perf-vdso.so-Xy12zZ && : > {copies}/mine\n"
        "echo no room >&2\nexit 1\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(kernel_trace, "_found", lambda _source: str(tool))
    monkeypatch.setattr(kernel_trace, "_COPIES", str(copies))
    monkeypatch.setattr(kernel_trace, "_BEFORE", 0.1)
    assert run([program.pid], source="perf")["failed"]
    assert {path.name for path in copies.iterdir()} == {"perf-vdso.so-aaaaaa", "mine"}


def test_a_report_without_end(run: Run, program: kernel_tools.Told, tmp_path: Path, monkeypatch: Any) -> None:
    tool = tmp_path / "memleak"
    tool.write_text("#!/bin/sh\necho '[10:00:00] Top 10000 stacks with outstanding allocations:'\nexec yes\n")
    tool.chmod(0o755)
    monkeypatch.setattr(kernel_trace, "_found", lambda _source: str(tool))
    monkeypatch.setattr(budget, "BEFORE", 0.1)
    result = run([program.pid], source="memleak", max_recording="1M")
    assert "a report of memleak is larger than 1 MiB" in result["ended"] and result["dumps"] == []


def test_a_tool_that_says_nothing(run: Run, program: kernel_tools.Told, tmp_path: Path, monkeypatch: Any) -> None:
    tool = tmp_path / "memleak"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setattr(kernel_trace, "_found", lambda _source: str(tool))
    monkeypatch.setattr(kernel_trace, "_LATE", -0.5)
    monkeypatch.setattr(budget, "BEFORE", 0.1)
    result = run([program.pid], source="memleak", windows=3)
    assert "a report of memleak is" in result["ended"] and result["dumps"] == []


@pytest.mark.slow
def test_a_tool_that_does_not_end(run: Run, program: kernel_tools.Told, tmp_path: Path, monkeypatch: Any) -> None:
    tool = tmp_path / "perf"
    tool.write_text("#!/bin/sh\ntrap '' INT\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setattr(kernel_trace, "_found", lambda _source: str(tool))
    monkeypatch.setattr(kernel_trace, "_TO_END", 0.5)
    monkeypatch.setattr(kernel_trace, "_BEFORE", 0.1)
    result = run([program.pid], source="perf", windows=3)
    assert "has not finished a window" in result.get("ended", ""), result
    assert not any("sleep" in procfs.cmdline(pid)[:1] for pid in _children()), "it was killed"


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]


HEADING = b"[10:00:%02d] Top 10000 stacks with outstanding allocations:\n"


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_reports_come_whole(size: int) -> None:
    """However the pipe cuts what memleak says."""
    said = b"Attaching to pid 1, Ctrl+C to quit.\n"
    bodies = [b"\t100 bytes in 1 allocations from stack\n\t\tmain\n" * number for number in range(4)]
    said += b"".join(HEADING % number + body for number, body in enumerate(bodies))
    reports = kernel_trace._Reports()
    found = []
    for start in range(0, len(said), size):
        found += [text for text, _when in reports.whole(said[start : start + size], False)]
    assert found == [HEADING % number + bodies[number] for number in range(3)]
    assert [text for text, _when in reports.whole(b"", True)] == [HEADING % 3 + bodies[3]]


def test_a_library_that_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "program"
    shutil.copy("/bin/sleep", file)
    with subprocess.Popen([file, "60"]) as process:
        wait(lambda: str(file) in procfs.mapped_files(process.pid), "it runs")
        monkeypatch.setattr(process_allocators, "of_process", lambda _pid: [{"allocator": "libc", "file": str(file)}])
        assert kernel_trace._allocator(process.pid) == f"/proc/{process.pid}/root{file}"
        os.rename(file, tmp_path / "old")
        shutil.copy("/bin/sleep", file)
        with pytest.raises(OffheapError, match="was replaced since process"):
            kernel_trace._allocator(process.pid)
        process.kill()


def test_one_whose_main_thread_has_ended_has_an_allocator(tmp_path: Path) -> None:
    source = programs.compiled(tmp_path, "program", programs.GOES_ON_WITHOUT_MAIN, "-pthread")
    with programs.running(source, state="Z") as pid:
        assert os.path.basename(kernel_trace._allocator(pid)).startswith("libc")


def test_wanted_sources_are_known() -> None:
    with pytest.raises(OffheapError, match="auto, jvm, attach, memleak or perf"):
        Wanted("app", "", 5, 1, 4096, 1 << 20, source="dtrace").check()
    assert issubclass(Ended, OffheapError)
