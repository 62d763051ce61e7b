# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a service's user may write into the recording of its own trace, which root reads on the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import jfr_layout
from ansible_collections.offheap.profiler.plugins.module_utils.formats.jfr_header import HEADER, MAGIC, JfrError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_protocol import Jvm
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import async_profiler
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import Ended
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thinned import Thinned
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.strategies import small_recordings
from ansible_collections.offheap.profiler.tests.unit.strategies.small_recordings import recording


def test_a_recording_of_nothing_but_allocations() -> None:
    """Those of an eighth of the most that is read at once take an eighth of 300 MiB."""
    data = recording([(at, at, 40, 1) for at in range(1, 1 << 16)])
    with Thinned() as kept, costs_at_most(seconds=20, mib=300 / 8):
        kept.add([data])
    with Thinned() as kept, pytest.raises(JfrError, match="more than 524288 allocations in one chunk: record less"):
        kept.add([recording([(1, 1, 40, 1)] * 524289)])


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the profiler would write to; a service that answers every question of HotSpot's attach, and does nothing."""
    link = tmp_path / "recording"

    def load(_jvm: Jvm, _library: str, options: str, _paths: tuple[str, ...] = ()) -> int:
        if options.startswith("start"):
            (path,) = (Path(option[5:]) for option in options.split(",") if option.startswith("file="))
            os.link(path, link)
        return 0

    monkeypatch.setattr(places, "SOCKETS", str(tmp_path / "run"))
    monkeypatch.setattr(places, "TRACING", str(tmp_path / "run" / "tracing"))
    monkeypatch.setattr(hotspot_attach, "load", load)
    return link


@pytest.mark.parametrize(
    ("header", "length", "error", "says"),
    [
        (b"x" * 100, 100, JfrError, "does not begin as one"),
        (HEADER.pack(MAGIC, 2, 0, -1, 1, 1, 0, 0, 0, 1, 1), 1 << 40, JfrError, "cut off"),
        (HEADER.pack(MAGIC, 2, 0, 1 << 40, 1, 1, 0, 0, 0, 1, 1), 1 << 40, Ended, "grown by 1048576 MiB at once"),
        (b"", 1 << 40, JfrError, "does not begin as one"),
    ],
    ids=["noise", "size below zero", "one huge chunk", "a hole"],
)
def test_a_file_that_is_no_recording(
    written: Path, header: bytes, length: int, error: type[Exception], says: str
) -> None:
    pid = os.getpid()
    jvm = Jvm(pid, pid, procfs.start_ticks(pid), os.getuid(), os.getgid(), (), catches=True)
    with async_profiler.Recording(async_profiler.Traceable(jvm, 17, "library"), 1 << 20, 60) as made:
        written.write_bytes(header)
        os.truncate(written, length)
        made.stop()
        with costs_at_most(seconds=5, mib=8), pytest.raises(error, match=says):
            list(made.take(32 << 20))


def test_a_type_of_very_many_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, on the host: a pattern is made of them."""
    name, fields = small_recordings._TYPES[20]
    more = (("f", 3, ""),) * 160_000
    monkeypatch.setitem(small_recordings._TYPES, 20, (name, (*fields, *more)))
    chunk = recording([(1, 2, 3, 1)])
    with costs_at_most(seconds=5, mib=300), pytest.raises(JfrError, match="a type of 160005 fields"):
        jfr_layout.describe(chunk, HEADER.unpack_from(chunk)[5])
