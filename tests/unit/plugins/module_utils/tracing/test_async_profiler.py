# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A real JVM is traced without a restart, and nothing is left of that but the library; or it is refused, and why."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_protocol import HotspotError
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import async_profiler, jvm_trace
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Ended, TraceError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import jfr
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.tracing.conftest import (
    is_jvm,
    running,
    wait,
)
from ansible_collections.offheap.profiler.tests.unit.strategies import recordings

R = 65536
MOST = 64 << 20


def _recorded(pid: int) -> list[str]:
    """The recordings that a process has open."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a JVM opens and closes others meanwhile
            found.append(os.readlink(entry))
    return [link for link in found if "recording" in link]


@pytest.mark.slow
def test_a_trace_leaves_nothing_but_the_library(jvm: int, agent: str, tracing: Path, trusting: None) -> None:
    found = async_profiler.examine(jvm, agent)
    assert (found.jvm.pid, found.library) == (jvm, agent) and found.release >= async_profiler.OLDEST
    live, data = [], b""
    with async_profiler.Recording(found, R, 60) as recording:
        assert list(tracing.iterdir()) == []
        assert len(_recorded(jvm)) == 1
        for enough in (1 << 20, 8 << 20):
            while True:
                data += b"".join(recording.take(MOST))
                if (total := jfr.parse(data, "x", Told()).total).accum_bytes > enough:
                    break
            live.append(total.bytes)
    assert min(live) > 0
    assert _recorded(jvm) == []
    assert is_jvm(jvm)
    with async_profiler.Recording(found, R, 60) as again:
        assert b"".join(again.take(MOST)), "it can be traced again"


@pytest.mark.slow
def test_what_is_taken_of_a_recording_is_given_back(jvm: int, agent: str, trusting: None) -> None:
    with async_profiler.Recording(async_profiler.examine(jvm, agent), 4096, 60) as recording:
        wait(lambda: recording.size > 1 << 20, "it records")
        taken = b"".join(recording.take(MOST))
        (file,) = [fd for fd in Path(f"/proc/{jvm}/fd").iterdir() if "recording" in os.readlink(fd)]
        now = file.stat()  # it is being written
        assert len(taken) > 1 << 20 and now.st_size - now.st_blocks * 512 > 1 << 19
        assert jfr.parse(taken + b"".join(recording.take(MOST)), "x", Told()).total.bytes > 0


def test_a_recording_that_grows_faster_than_it_is_read(jvm: int, agent: str, trusting: None) -> None:
    with async_profiler.Recording(async_profiler.examine(jvm, agent), 4096, 60) as recording:
        wait(lambda: recording.size > 1 << 16, "it records")
        with pytest.raises(Ended, match="frees too often"):
            list(recording.take(1 << 16))


def test_a_recording_holds_no_properties(jvm: int, agent: str, trusting: None) -> None:
    with async_profiler.Recording(async_profiler.examine(jvm, agent), R, 60) as recording:
        data = b"".join(recording.take(MOST))
    assert b"java.class.path" not in data and b"LeakingInflater 50" not in data


def test_who_traces_is_killed_with_its_group_and_the_recording_grows_no_more(
    jvm: int, agent: str, tracing: Path, trusting: None
) -> None:
    found = async_profiler.examine(jvm, agent)
    child = os.fork()
    if child == 0:
        os.setsid()
        _kept = async_profiler.Recording(found, R, 3600)
        os.killpg(0, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert list(tracing.iterdir()) == []
    wait(lambda: not _recorded(jvm), "it was stopped")
    with async_profiler.Recording(found, R, 60) as again:
        assert b"".join(again.take(MOST)), "it can be traced again"


def test_it_stops_by_itself_as_well(jvm: int, agent: str, trusting: None) -> None:
    with async_profiler.Recording(async_profiler.examine(jvm, agent), R, 2):
        wait(lambda: not _recorded(jvm), "it has stopped by itself")


def test_a_jvm_that_begins_to_record_and_does_not_say_so_in_time(
    jvm: int, agent: str, monkeypatch: pytest.MonkeyPatch, trusting: None
) -> None:
    found, load = async_profiler.examine(jvm, agent), hotspot_attach.load

    def late(*given: Any) -> int:
        code = load(*given)
        if given[2].startswith("start"):
            assert code == 0 and len(_recorded(jvm)) == 1
            raise HotspotError("no answer in time")
        return code

    monkeypatch.setattr(hotspot_attach, "load", late)
    with pytest.raises(HotspotError, match="in time"):
        async_profiler.Recording(found, R, 3600)
    assert _recorded(jvm) == []


def test_what_was_cut_off_while_it_began_is_removed(jvm: int, agent: str, tracing: Path, trusting: None) -> None:
    left = tracing / "1-abcdef01"
    left.mkdir(parents=True)
    (left / "recording").write_bytes(b"x")
    with async_profiler.Recording(async_profiler.examine(jvm, agent), R, 60):
        assert list(tracing.iterdir()) == []


def test_a_jvm_that_is_traced_already(jvm: int, agent: str, tracing: Path, trusting: None) -> None:
    found = async_profiler.examine(jvm, agent)
    with async_profiler.Recording(found, R, 60) as recording:
        with pytest.raises(TraceError, match="Profiler already started"):
            async_profiler.Recording(found, R, 60)
        assert list(tracing.iterdir()) == []
        assert b"".join(recording.take(MOST))


def test_a_trace_that_somebody_else_stopped(jvm: int, agent: str, trusting: None) -> None:
    found = async_profiler.examine(jvm, agent)
    with async_profiler.Recording(found, R, 60) as recording:
        assert hotspot_attach.load(found.jvm, agent, "stop,quiet,loglevel=none") == 0
        with pytest.raises(TraceError, match="stopped by somebody else"):
            list(recording.take(MOST))


def test_a_library_that_is_none(jvm: int, tmp_path: Path, trusting: None) -> None:
    text = tmp_path / "lib.so"
    text.write_text("text")
    with pytest.raises(TraceError, match="is no library"):
        async_profiler.examine(jvm, str(text))


def test_a_library_for_another_machine(jvm: int, agent: str, tmp_path: Path, trusting: None) -> None:
    other = tmp_path / "lib.so"
    content = bytearray(Path(agent).read_bytes())
    content[18] = 0xF7 - content[18]  # e_machine: x86-64 is 62, AArch64 is 183
    other.write_bytes(content)
    with pytest.raises(TraceError, match="take async-profiler's library for that"):
        async_profiler.examine(jvm, str(other))


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        (b"async-profiler 4.4\0", "is async-profiler 4.4; a trace needs async-profiler 4.5"),
        (b"async-profiler 3.9\0", "is async-profiler 3.9"),
        (b"some-profiler  4.5\0", "says no version, as before 4.2"),
    ],
)
def test_an_older_library(version: bytes, shown: str, jvm: int, agent: str, tmp_path: Path, trusting: None) -> None:
    older = tmp_path / "lib.so"
    content = Path(agent).read_bytes()
    own = f"async-profiler {recordings.VERSION}\0".encode()
    assert content.count(own) == 1
    older.write_bytes(content.replace(own, version))
    with pytest.raises(TraceError, match=shown):
        async_profiler.examine(jvm, str(older))
    assert str(older) not in Path(f"/proc/{jvm}/maps").read_text()


def test_a_library_that_others_may_write(jvm: int, agent: str, tmp_path: Path) -> None:
    open_to_all = tmp_path / "lib.so"
    shutil.copy(agent, open_to_all)
    open_to_all.chmod(0o666)
    with pytest.raises(TraceError, match="could be replaced"):
        async_profiler.examine(jvm, str(open_to_all))


def test_no_library(jvm: int) -> None:
    with pytest.raises(TraceError, match="cannot use the library"):
        async_profiler.examine(jvm, "/none.so")


def test_a_jvm_that_loads_nothing(classes: Path, agent: str, trusting: None) -> None:
    error, way_out = TraceError, r"Start it with -XX:\+EnableDynamicAgentLoading"
    with running(classes, "-XX:-EnableDynamicAgentLoading") as pid, pytest.raises(error, match=way_out):
        async_profiler.examine(pid, agent)


def test_what_is_no_jvm(agent: str, trusting: None) -> None:
    with pytest.raises(OffheapError, match="it is not a JVM"):
        async_profiler.examine(os.getpid(), agent)


def test_an_old_jdk_and_a_container(jvm: int, agent: str, monkeypatch: pytest.MonkeyPatch, trusting: None) -> None:
    found = hotspot_attach.look(jvm)
    monkeypatch.setattr(hotspot_attach, "version", lambda _jvm: 7)
    with pytest.raises(TraceError, match="needs JDK 8 or later"):
        async_profiler.examine(jvm, agent)
    monkeypatch.setattr(hotspot_attach, "look", lambda _pid: found._replace(own_pid=1))
    with pytest.raises(TraceError, match="runs in a container, where it is 1"):
        async_profiler.examine(jvm, agent)


def test_a_file_system_without_code(
    jvm: int, agent: str, tracing: Path, monkeypatch: pytest.MonkeyPatch, trusting: None
) -> None:
    found = async_profiler.examine(jvm, agent)
    flags = os.statvfs_result((*os.statvfs("/")[:8], os.ST_NOEXEC, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: flags)
    with pytest.raises(OffheapError, match="noexec, or NoExecPaths="):
        async_profiler.Recording(found, R, 60)
    assert list(tracing.iterdir()) == []


def test_a_place_that_the_service_cannot_write_to(jvm: int, agent: str, trusting: None) -> None:
    found = async_profiler.examine(jvm, agent)
    with pytest.raises(OffheapError, match=r"cannot use /proc/none: .*ReadWritePaths=-/run/offheap"):
        hotspot_attach.load(found.jvm, agent, "status", ("/proc/none",))


def test_a_unit_near_its_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unit:
        name, text = "frontend.service", {"ControlGroup": "/x"}

    monkeypatch.setattr(cgroup, "left", lambda _group: 90 << 20)
    with pytest.raises(TraceError, match=r"frontend.service is 90 MiB below its memory limit"):
        jvm_trace._check_room(Unit(), 32 << 20)  # type: ignore[arg-type]
    jvm_trace._check_room(Unit(), 16 << 20)  # type: ignore[arg-type]
