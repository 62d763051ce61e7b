# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a recording says of what came and stayed."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import (
    ASYNC_PROFILER,
    CaptureFacts,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver import stayed
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives, recordings


def test_the_largest_path_and_its_age(directory: Path) -> None:
    path = recordings.recording(directory, recordings.library(directory), "nativemem=65536")
    facts = _recording(path.read_bytes())
    (largest,) = stayed.stayed(path, facts, 1)
    assert largest.path.startswith("deflateInit2_ ←") and "Recorded.serve" in largest.path
    assert largest.bytes == pytest.approx(100 * recordings.DEFLATER, rel=0.1)
    assert largest.age is not None and 0 <= largest.age < 60
    assert stayed.stayed(path, facts, 2)[0] == largest and stayed.stayed(path, facts, 0) == []


def test_a_recording_that_changed(directory: Path) -> None:
    path = directory / "other.jfr"
    path.write_bytes(b"FLR")
    facts = _recording(b"FLR")
    with pytest.raises(ControllerError, match="ends within the header"):
        stayed.stayed(path, facts, 1)
    changed = dataclasses.replace(facts, dump=dataclasses.replace(facts.dump, sha256=hashlib.sha256(b"").hexdigest()))
    with pytest.raises(ControllerError, match="is damaged"):
        stayed.stayed(path, changed, 1)


def test_half_of_the_bytes_have_the_median_age() -> None:
    assert stayed._median([(1.0, 10), (5.0, 30), (9.0, 20)]) == 5.0
    assert stayed._median([(1.0, 100), (5.0, 30)]) == 1.0


def test_a_text_of_memleak_has_no_ages(tmp_path: Path) -> None:
    text = (
        b"[11:16:33] Top 10000 stacks with outstanding allocations:\n"
        b"\t80 bytes in 5 allocations from stack\n\t\tkeep+0x1a [app]\n\t\tmain+0x6d [app]\n"
        b"\t10 bytes in 1 allocations from stack\n\t\tuse+0x1a [app]\n"
    )
    (tmp_path / "dump").write_bytes(text)
    facts = dataclasses.replace(capture_samples.facts(text), source="memleak")
    assert stayed.stayed(tmp_path / "dump", facts, 1) == [stayed.Stayed("keep ← main", 80, None)]


def test_a_dump_of_the_agent_is_named_by_the_images_of_its_archive(directory: Path, tmp_path: Path) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path, dumps=2)
    newest = max(archive.captures("frontend.service", "app1"), key=lambda capture: capture.time)
    largest = stayed.stayed(newest.dump, newest.facts, 2)
    assert [one.path for one in largest] == ["deflate ← [jit]", "inflate ← [jit]"]
    assert [round(one.bytes / leaky_archives.INTERVAL) for one in largest] == [31, 15]
    assert stayed.stayed(newest.dump, newest.facts, 1) == largest[:1]


def _recording(data: bytes) -> CaptureFacts:
    return dataclasses.replace(capture_samples.facts(data), source=ASYNC_PROFILER)
