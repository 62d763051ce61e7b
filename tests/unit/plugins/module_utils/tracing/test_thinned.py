# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A recording without the frees that say nothing says the same as the whole one, to us and to the JDK's reader."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.jfr_header import HEADER, JfrError
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thinned import Thinned
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import jfr, jfr_chunk
from ansible_collections.offheap.profiler.tests.unit.strategies import recordings, small_recordings


def _chunks(directory: Path, agent: str, options: str, count: int) -> list[bytes]:
    return list(jfr_chunk.split(recordings.recording(directory, Path(agent), options, count).read_bytes()))


@pytest.fixture(scope="module")
def chunks(directory: Path, agent: str) -> list[bytes]:
    return _chunks(directory, agent, "nativemem=65536", 3000)


def _read(kept: Thinned) -> bytes:
    return os.pread(kept.fd, kept.size, 0)


def _events(file: Path, name: str) -> int:
    printed = subprocess.run(["jfr", "print", "--events", name, file], capture_output=True, check=True, text=True)
    return printed.stdout.count(f"{name} {{")


def _check(chunks: list[bytes]) -> Iterator[tuple[jfr.Allocations, jfr.Allocations]]:
    """After each chunk, what the whole recording says and what is kept of it, which is the same."""
    with Thinned() as kept:
        for number, chunk in enumerate(chunks, 1):
            kept.add([chunk])
            whole, thin = (jfr.allocations(data, "x", Told()) for data in (b"".join(chunks[:number]), _read(kept)))
            for name in ("times", "sizes", "ended", "freed", "stack"):
                assert getattr(thin, name).tolist() == getattr(whole, name).tolist()
            assert (thin.stacks, thin.end, thin.sampling) == (whole.stacks, whole.end, whole.sampling)
            assert bool(thin.frees) == bool(whole.frees)
            yield whole, thin


def test_each_window_says_the_same(chunks: list[bytes]) -> None:
    for whole, thin in _check(chunks):
        assert whole.freed.sum() <= thin.frees <= whole.freed.sum() + len(chunks)  # one of each chunk stays
        assert thin.frees < whole.frees
        assert 0 < whole.live.sum() < len(whole.live)


# Addresses are used again and again; large numbers take more bytes.
_TIMES, _ADDRESSES = st.sampled_from([1, 2, 3, 127, 128, 1 << 40]), st.sampled_from([10, 11, 1 << 46])
_ALLOCATIONS = st.tuples(_TIMES, _ADDRESSES, st.sampled_from([40, 5000]), st.sampled_from([1, 2]))
_FREES = st.tuples(_TIMES, _ADDRESSES)


@given(st.lists(st.lists(_ALLOCATIONS | _FREES, max_size=8), min_size=1, max_size=4))
def test_any_events_say_the_same(events: list[list[small_recordings.Event]]) -> None:
    """Whatever their order in a chunk, and that of their fields."""
    for _window in _check(list(jfr_chunk.split(small_recordings.recording(*events)))):
        pass


def test_what_a_later_chunk_frees(directory: Path, agent: str) -> None:
    """The last chunk frees what the one before it allocated, and allocates nothing."""
    *_others, (before, _thin), (after, _thin) = _check(_chunks(directory, agent, "nativemem=65536", 6))
    assert after.live[: len(before.live)].sum() < before.live.sum()


def test_frees_of_nothing_that_was_recorded(directory: Path, agent: str) -> None:
    """They still say that what is recorded is what is live."""
    with Thinned() as kept:
        kept.add(_chunks(directory, agent, "nativemem=1g", 300))
        records = jfr.parse(_read(kept), "x", Told())
    assert (records.measure, records.total.accum_bytes) == (Measure.LIVE, 0)


def test_the_jdk_reads_it(chunks: list[bytes], tmp_path: Path) -> None:
    whole, thin = tmp_path / "whole.jfr", tmp_path / "thin.jfr"
    whole.write_bytes(b"".join(chunks))
    with Thinned() as kept:
        kept.add(chunks)
        thin.write_bytes(_read(kept))
    assert _events(thin, "profiler.Malloc") == _events(whole, "profiler.Malloc") > 100
    assert 0 < _events(thin, "profiler.Free") < _events(whole, "profiler.Free")


def test_what_is_taken_twice_loses_no_free(chunks: list[bytes]) -> None:
    with Thinned() as kept, Thinned() as again:
        kept.add(chunks)
        again.add([chunks[0], *chunks])
        live = [jfr.parse(_read(thinned), "x", Told()).total.bytes for thinned in (kept, again)]
    assert live[0] == live[1] > 0


def test_a_recording_without_frees_stays_as_it_is(directory: Path, agent: str) -> None:
    chunks = _chunks(directory, agent, "nativemem=65536,nofree", 300)
    with Thinned() as kept:
        kept.add(chunks)
        assert _read(kept) == b"".join(chunks)
        assert jfr.parse(_read(kept), "x", Told()).measure is Measure.ALLOCATED


@given(st.data())
def test_a_damaged_chunk(chunks: list[bytes], data: st.DataObject) -> None:
    damaged = bytearray(chunks[0])
    for _change in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(16, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with Thinned() as kept:
        try:
            kept.add([bytes(damaged)])
        except JfrError as error:
            assert str(error)
        else:
            assert HEADER.size < kept.size <= len(damaged)
