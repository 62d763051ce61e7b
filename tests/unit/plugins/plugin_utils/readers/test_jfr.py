# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Recordings that async-profiler and Datadog's made of a real JVM: our totals are those of the JDK's own reader."""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, jfr, jfr_chunk
from ansible_collections.offheap.profiler.tests.hostile.bounds import in_child
from ansible_collections.offheap.profiler.tests.unit.strategies import recordings, small_recordings

KEPT = 100 * recordings.DEFLATER
LEAK = (
    "deflateInit2_ Java_java_util_zip_Deflater_init java.util.zip.Deflater.init java.util.zip.Deflater.<init>"
    " java.util.zip.Deflater.<init> Recorded.serve Recorded.lambda$main$0 Recorded$$Lambda.run Recorded.main"
)


@pytest.fixture(scope="module")
def agent(directory: Path) -> Path:
    return recordings.library(directory)


def _read(path: Path) -> Records:
    data = path.read_bytes()
    assert detect.source_of(data, "x") == "async-profiler"
    return detect.parse(data, "x", Told())


def _as_the_jdk_says(path: Path, interval: int) -> tuple[Counter[str], Counter[str]]:
    """Bytes by stack that are live, and that were allocated."""
    allocated: Counter[str] = Counter()
    there: dict[int, tuple[str, int]] = {}
    for values in _events(path, "profiler.Malloc,profiler.Free"):
        there.pop(values["address"], None)
        if "size" in values:
            stack, weight = _stack(values["stackTrace"]), max(values["size"], interval)
            allocated[stack] += weight
            there[values["address"]] = (stack, weight)
    live: Counter[str] = Counter()
    for stack, weight in there.values():
        live[stack] += weight
    return live, allocated


def _events(path: Path, kinds: str) -> list[dict[str, Any]]:
    command = ["jfr", "print", "--json", "--stack-depth", "2048", "--events", kinds]
    printed = subprocess.run([*command, path], capture_output=True, check=True).stdout
    return [event["values"] for event in json.loads(printed)["recording"]["events"]]


def _stack(trace: Any) -> str:
    frames = trace["frames"] if trace else []
    names = [frame["method"]["name"] for frame in frames]
    # A place that no symbol covers has the path of its library.
    return " ".join(name.rpartition("/")[2] if name.startswith("/") else name for name in names) or "[unknown]"


def _methods(records: Records, counts: Any) -> Counter[str]:
    """The same by the names of methods alone."""
    found: Counter[str] = Counter()
    for stack, size in zip(records.stacks(), counts, strict=True):
        names = [records.names[place] for place in stack]
        found[
            " ".join(name.function.rpartition(".")[2] if name.kind is Kind.JAVA else name.function for name in names)
        ] += size
    return +found


@pytest.mark.slow
@pytest.mark.parametrize("interval", [0, 65536, 1 << 20])
def test_the_totals_of_the_jdk(interval: int, agent: Path, directory: Path) -> None:
    path = recordings.recording(directory, agent, f"nativemem={interval}")
    records = _read(path)
    live, allocated = _as_the_jdk_says(path, interval)
    assert records.total.bytes == sum(live.values())
    assert records.total.accum_bytes == sum(allocated.values())
    assert _methods(records, records.counts.bytes) == live
    assert records.measure is Measure.LIVE
    assert records.sampling == (Sampling(Scheme.SYSTEMATIC, interval) if interval else EXACT)
    assert abs(records.time - path.stat().st_mtime) < 60


@pytest.mark.slow
def test_what_datadogs_profiler_saw_counts_as_its_weights(tmp_path: Path) -> None:
    path = recordings.datadogs_recording(tmp_path)
    records = _read(path)
    allocated: Counter[str] = Counter()
    for values in _events(path, "datadog.NativeMemoryAllocation"):
        allocated[_stack(values["stackTrace"])] += values["size"] * values["weight"]
    # A weight has seven digits, and bytes are whole for each stack.
    assert _methods(records, records.counts.bytes) == pytest.approx(allocated, rel=1e-6, abs=1)
    assert records.total.bytes == pytest.approx(sum(allocated.values()), abs=len(allocated))
    # 1,500 buffers of 20,000 bytes, as many Inflaters, and what the JVM needs; the sampling errs by 4 %.
    assert records.total.bytes == pytest.approx(38e6, rel=0.25)
    assert (records.measure, records.sampling.scheme) == (Measure.ALLOCATED, Scheme.POISSON)
    assert records.sampling.interval == pytest.approx(65536, rel=0.01)


def test_a_leak_is_named_by_its_java_frames(agent: Path, directory: Path) -> None:
    records = _read(recordings.recording(directory, agent, "nativemem=65536"))
    largest = max(range(len(records.counts)), key=lambda number: records.counts.bytes[number])
    frames = [records.names[place] for place in list(records.stacks())[largest]]
    assert frames[0].module == "libasyncProfiler.so"
    assert " ".join(frame.function for frame in frames[1:]) == LEAK
    assert {frame.kind for frame in frames[:3]} == {Kind.NATIVE} and {f.kind for f in frames[3:]} == {Kind.JAVA}
    assert records.counts.bytes[largest] == pytest.approx(KEPT, rel=0.1)


def test_what_stayed_has_an_age(agent: Path, directory: Path) -> None:
    found = jfr.allocations(recordings.recording(directory, agent, "nativemem=65536").read_bytes(), "x", Told())
    ages = [age for _stack, _size, age in jfr.each_live(found)]
    assert ages and 0 <= min(ages) <= max(ages) < 60
    # Whole bytes of each.
    whole = sum(size for _stack, size, _age in jfr.each_live(found))
    assert whole == pytest.approx(sum(found.weights[found.live].tolist()), abs=len(ages))


def test_without_frees_nothing_is_called_live(agent: Path, directory: Path) -> None:
    records = _read(recordings.recording(directory, agent, "nativemem=65536,nofree"))
    assert records.measure is Measure.ALLOCATED
    assert records.total.bytes >= 3 * KEPT


def _first(chunk: jfr_chunk.Chunk, kind: str) -> dict[int, int]:
    """When an event of this kind named an address first."""
    found: dict[int, int] = {}
    for address, time in zip(
        *(column.tolist() for column in chunk.columns(kind, ("address", "startTime"))), strict=True
    ):
        found[address] = min(time, found.get(address, time))
    return found


def test_several_chunks_are_one_recording(agent: Path, directory: Path) -> None:
    """What one chunk allocates the next may free, and only the first says R."""
    data = recordings.recording(directory, agent, "nativemem=65536").read_bytes()
    chunks = [jfr_chunk.Chunk(part) for part in jfr_chunk.split(data)]
    assert len(chunks) == 4
    freed, allocated = ([_first(chunk, kind) for chunk in chunks] for kind in ("profiler.Free", "profiler.Malloc"))
    # Its place may be taken again in the same chunk.
    assert any(
        address in allocated[at] and time < allocated[at + 1].get(address, math.inf)
        for at in range(3)
        for address, time in freed[at + 1].items()
    )
    assert sum("nativemem" in str(list(chunk.each("jdk.ActiveSetting"))) for chunk in chunks) == 1


def test_a_recording_that_goes_on(agent: Path, directory: Path) -> None:
    path = recordings.recording(directory, agent, "nativemem=65536")
    data = path.read_bytes()
    begun = data[:16] + bytes(16) + data[32:]
    assert detect.parse(data + begun[:1000], "x", Told()).total == detect.parse(data, "x", Told()).total
    with pytest.raises(OffheapError, match="has no finished chunk"):
        detect.parse(begun, "x", Told())
    with pytest.raises(OffheapError, match="a chunk is cut off"):
        detect.parse(data[:-1], "x", Told())


def test_a_recording_of_something_else(agent: Path, directory: Path) -> None:
    path = recordings.recording(directory, agent, "event=itimer")
    with pytest.raises(OffheapError, match=r"no recording of native memory \(async-profiler, -e nativemem;"):
        _read(path)


def test_types_that_are_called_something_else_are_refused_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file itself says what a stack, a frame and a name are."""
    types = dict(small_recordings._TYPES)
    names = sorted({name for name, _fields in types.values()})
    refused = 0
    for number, (name, fields) in types.items():
        for other in names:
            monkeypatch.setitem(small_recordings._TYPES, number, (other, fields))
            data = small_recordings.recording([(1, 10, 40, 1)], native=("serve",))
            try:
                detect.FORMATS["async-profiler"].parse(data, "x", Told())
            except OffheapError:
                refused += 1
        monkeypatch.setitem(small_recordings._TYPES, number, (name, fields))
    assert refused > 20


_MUTATED = """
import random, resource, time
from pathlib import Path
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect

sound = Path({path!r}).read_bytes()
detect.parse(sound, "x", Told())
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before, refused = peak(), 0
for seed in range({seeds}):
    chance = random.Random(seed)
    data = bytearray(sound)
    for _ in range(chance.choice((1, 3, 30))):
        at, what = chance.randrange(len(data)), chance.randrange(3)
        if what == 0:
            data[at] = chance.randrange(256)
        elif what == 1:
            data[at:at + 9] = bytes([255] * 9)
        else:
            del data[at:at + chance.randrange(1, 200)]
    began = time.process_time()
    try:
        detect.FORMATS["async-profiler"].parse(bytes(data), "x", Told())
    except ControllerError as error:
        refused += 1
        assert str(error).isprintable()
    assert time.process_time() - began < 1, seed
    assert peak() - before < 256, seed
print(refused)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [250, pytest.param(1000, marks=pytest.mark.soak_only)])
def test_mutated_recordings(agent: Path, directory: Path, seeds: int) -> None:
    path = recordings.recording(directory, agent, "nativemem=65536", 60)
    refused = int(in_child(_MUTATED.format(path=str(path), seeds=seeds), 50, 2048))
    assert seeds / 2 < refused < seeds
