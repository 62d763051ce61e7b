# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Perf maps of real processes, and what may be in their place. JVMs are in test_hotspot_attach.py and on the lab."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits, perf_map_line
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import live_perf_map

OTHER = 12345

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["/bin/sh", "-c", "echo ready; read line"], stdin=-1, stdout=-1)
    assert started.stdout is not None and started.stdout.readline()
    yield started
    started.kill()
    started.communicate()


@pytest.fixture
def place(process: subprocess.Popen[bytes]) -> Iterator[Path]:
    """Where a runtime in the process would write its map."""
    path = Path(f"/tmp/perf-{process.pid}.map")
    yield path
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)


def key(pid: int) -> str:
    return process_key.key(pid, procfs.mappings(pid))


def written(process: subprocess.Popen[bytes]) -> bytes:
    target = io.BytesIO()
    assert live_perf_map.write(process.pid, key(process.pid), target) == len(target.getvalue())
    return target.getvalue()


def refused(process: subprocess.Popen[bytes]) -> str:
    with pytest.raises(live_perf_map.NoMap) as caught:
        written(process)
    return str(caught.value)


def test_a_map_that_the_runtime_has_written(process: subprocess.Popen[bytes], place: Path) -> None:
    assert refused(process) == perf_map_line.NONE
    place.write_bytes(b"1000 10 py::f:/app.py\n")
    assert written(process) == b"1000 10 py::f:/app.py\n"


def test_another_process_of_the_same_number(process: subprocess.Popen[bytes], place: Path) -> None:
    place.write_bytes(b"1000 10 x\n")
    with pytest.raises(live_perf_map.NoMap, match=perf_map_line.ENDED):
        live_perf_map.write(process.pid, f"{process.pid}-00000000", io.BytesIO())
    with pytest.raises(live_perf_map.NoMap, match=perf_map_line.ENDED):
        live_perf_map.write(4194305, "4194305-00000000", io.BytesIO())


def test_traps(process: subprocess.Popen[bytes], place: Path, tmp_path: Path, monkeypatch: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"1000 10 x\n")
    place.symlink_to(secret)
    assert "not an ordinary file" in refused(process)
    place.unlink()
    os.mkfifo(place)
    assert "not an ordinary file" in refused(process)
    place.unlink()
    place.mkdir()
    assert "not an ordinary file" in refused(process)
    place.rmdir()
    place.write_bytes(b"x" * 11)
    monkeypatch.setattr(limits, "LARGEST_PERF_MAP", 10)
    assert "larger than 10 bytes" in refused(process)


@needs_root
def test_a_file_of_another_user(process: subprocess.Popen[bytes], place: Path) -> None:
    place.write_bytes(b"1000 10 x\n")
    os.chown(place, OTHER, OTHER)
    assert f"belongs to user {OTHER}" in refused(process)
