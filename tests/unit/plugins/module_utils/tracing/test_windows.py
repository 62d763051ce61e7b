# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A unit's JVM is traced in windows, each of which ends in a recording in its spool."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name
from ansible_collections.offheap.profiler.plugins.module_utils.host import places
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory as spool
from ansible_collections.offheap.profiler.plugins.module_utils.spool import listing, provenance
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import attach_trace, jvm_trace
from ansible_collections.offheap.profiler.plugins.modules import trace_live
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import jfr, jfr_chunk
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.tracing.conftest import (
    loads,
    running,
    wait,
)

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "spools"
    monkeypatch.setattr(places, "SPOOLS", str(directory))
    root = spool.Root
    monkeypatch.setattr(spool, "Root", lambda path=str(directory): root(path))
    return directory


@pytest.fixture
def run(
    systemctl: Systemctl, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs the module for a unit with these processes."""

    def go(pids: list[int], check: bool = False, **arguments: Any) -> dict[str, Any]:
        systemctl.states(shown("/usr/bin/java", Id="web.service", ActiveState="active", ControlGroup="/web.service"))
        systemctl.processes("/web.service", *pids)
        return run_module(trace_live.main, monkeypatch, capsys, check, unit="web", **arguments)

    yield go
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _why(result: dict[str, Any]) -> str:
    """Why the trace has ended. If it has failed, pytest shows how."""
    assert not result.get("failed"), result
    return str(result["ended"])


def test_what_an_agent_samples_is_not_recorded(
    run: Run, jvm: int, agent: str, spools: Path, trusting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent would see nothing from then on, and call that no leak."""
    monkeypatch.setattr(attach_trace, "has_sampler", lambda pid: pid == jvm)
    result = run([jvm], library=agent, window=5, windows=1)
    assert result["failed"] and f"an agent samples process {jvm}" in result["msg"]


@pytest.mark.slow
def test_each_window_ends_in_a_recording(run: Run, jvm: int, agent: str, spools: Path, trusting: None) -> None:
    result = run([os.getpid(), jvm], library=agent, window=5, windows=2, interval="64K")
    assert (result["changed"], result["pid"], result["ended"]) == (True, jvm, "")
    first, second = ((spools / "web.service" / name).read_bytes() for name in result["dumps"])
    assert second.startswith(first), "all begin with the trace"
    assert jfr.parse(first, "x", Told()).total.bytes > 1 << 20
    found = listing.find(str(spools), [], 1 << 28, 10, provenance.Examiner())
    assert [capture.name for capture in found.captures] == result["dumps"]
    (process,) = found.processes
    assert process.pid == jvm and process.exe is not None and process.exe.endswith("/java")
    assert [path.name for path in (spools / "web.service").iterdir() if not dump_name.parse(path.name)] == []


def test_check_mode_leaves_the_jvm_alone(run: Run, jvm: int, agent: str, spools: Path, trusting: None) -> None:
    assert run([jvm], check=True, library=agent)["dumps"] == []
    assert not spools.exists()


def test_a_process_beside_the_jvm_is_traced_as_what_it_is(run: Run, jvm: int, agent: str, trusting: None) -> None:
    beside = run([os.getpid(), jvm], check=True, pid=os.getpid(), library=agent)
    assert beside.get("source") in ("attach", "memleak", "perf"), beside


@pytest.mark.slow
def test_a_signal_ends_it_early(run: Run, jvm: int, agent: str, spools: Path, trusting: None) -> None:
    def interrupt() -> None:
        wait(lambda: any(spools.glob("*/*.heap")), "a window has ended")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = run([jvm], library=agent, window=5, windows=100, interval="64K")
    thread.join()
    assert "it was interrupted" in _why(result) and _why(result) in str(result["warnings"])
    assert len(result["dumps"]) == 2, "that of the window, and what was seen since"


@pytest.mark.slow
def test_frees_fill_no_recording(run: Run, jvm: int, agent: str, spools: Path, trusting: None) -> None:
    """It keeps 20,000 streams and lets go of them at once: a megabyte of frees every few seconds."""
    result = run([jvm], library=agent, window=10, windows=2, max_recording="7M")
    assert (result["ended"], len(result["dumps"])) == ("", 2)
    last = (spools / "web.service" / result["dumps"][-1]).read_bytes()
    assert len(list(jfr_chunk.split(last))) > 2, "what was recorded is taken within a window"
    assert len(last) < 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("largest", "unread", "interval", "says"),
    # What grows slowly enough is read before it is too much, on a busy machine as well.
    [("3M", 4, "4K", "the process frees too often"), ("3M", 1, "16K", "the recording has reached 3 MiB")],
)
def test_a_recording_that_grows_too_fast_or_too_large(
    largest: str,
    unread: int,
    interval: str,
    says: str,
    run: Run,
    jvm: int,
    agent: str,
    spools: Path,
    monkeypatch: pytest.MonkeyPatch,
    trusting: None,
) -> None:
    monkeypatch.setattr(jvm_trace, "_OF_IT_AT_MOST", unread)
    result = run([jvm], library=agent, window=60, windows=9, interval=interval, max_recording=largest)
    assert says in _why(result)
    (name,) = result["dumps"]
    recorded = jfr.parse((spools / "web.service" / name).read_bytes(), "x", Told())
    assert recorded.total.bytes > 1 << 20, "what was seen until then is kept"


@pytest.mark.slow
def test_a_jvm_that_does_little_but_free(run: Run, classes: Path, agent: str, trusting: None) -> None:
    """The trace ends at its budget, or earlier, where nothing is left to read its recording with."""
    with running(classes, program="Deflaters 100000 2000 4096") as pid:
        wait(lambda: loads(pid, agent), "it loads agents")
        result = run([pid], library=agent, window=60, windows=2)
    assert re.search("2.5 % are allowed|frees too often", _why(result))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"window": 1}, "5 seconds or more"),
        ({"windows": 20000}, "a day at most"),
        ({"interval": "1"}, "between 4K and 1G"),
        ({"interval": "x"}, "interval is no size"),
        ({"max_recording": "1G"}, "between 1M and 128M"),
        ({"max_cost": 0}, "max_cost is percent"),
        ({"source": "jvm"}, "has no JVM that can be traced"),
        ({"source": "jvm", "pid": 1}, "process 1 is no JVM of web.service; its JVMs are none"),
        ({"source": "jvm", "library": None}, "the playbook offheap.profiler.trace_live installs it"),
    ],
)
def test_what_cannot_be(run: Run, tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    result = run([os.getpid()], **{"library": str(tmp_path / "none"), **arguments})
    assert result["failed"] and says in result["msg"]
