# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the field's own writers have written: recorded (fixtures/README.md), or by Go, beside pprof's own numbers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program

RECORDED = Path(__file__).with_name("fixtures")
_ROW = re.compile(r" *(\d+)B? +\S+% +\S+% +\d+B? +\S+% +(.*?)(?: \(inline\))?")
_MIB = 1 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return go_program.built(tmp_path_factory.mktemp("go"))


def content(path: Path) -> bytes:
    return unpack.read(path, 1 << 24)


def flat(records: Records) -> Counter[str]:
    """Bytes by the innermost function."""
    found: Counter[str] = Counter()
    for stack, size in zip(records.stacks(), records.counts.bytes, strict=True):
        if stack:
            found[records.names[stack[0] - len(records.addresses)].function] += size
    return found


def top_of_pprof(path: Path, index: str, where: Path) -> tuple[int, Counter[str]]:
    """The total and the ten largest functions, as pprof itself says them."""
    plain = where / "plain.pb"
    plain.write_bytes(content(path))
    asked = (f"-sample_index={index}", "-unit=B", "-nodefraction=0", "-nodecount=10", "-top", plain.name)
    shown = go_program.go(where, "tool", "pprof", *asked)
    total = re.search(r"of (\d+)B? total", shown)
    assert total, shown
    rows = filter(None, map(_ROW.fullmatch, shown.splitlines()))
    return int(total[1]), Counter({row[2]: int(row[1]) for row in rows if int(row[1])})


@pytest.mark.parametrize(
    ("name", "index", "measure"),
    [
        ("ddtrace-4.16.0.pprof.zst", "heap-space", None),
        ("ddtrace-4.16.0-imports.pprof.zst", "heap-space", None),
        ("ddtrace-4.16.0-threads.pprof.zst", "heap-space", None),
        ("datadog-pprof-5.20.0.pb.gz", "inuse_space", None),
        ("google-pprof-nodejs-5.0.0.pb.gz", "space", Measure.LIVE),
    ],
)
def test_a_recorded_profile_has_the_numbers_of_pprof(
    name: str, index: str, measure: Measure | None, tmp_path: Path
) -> None:
    records = detect.parse(content(RECORDED / name), name, Told(measure))
    total, largest = top_of_pprof(RECORDED / name, index, tmp_path)
    assert (records.measure, records.total.bytes) == (Measure.LIVE, total)
    own = flat(records)
    assert largest and {function: own[function] for function in largest} == largest
    assert sum(1 for size in own.values() if size > min(largest.values())) <= len(largest)


def test_fil_s_peak() -> None:
    data = content(RECORDED / "filprofiler-2024.11.2.prof")
    records = detect.parse(data, "x", Told(Measure.LIVE, "bytes", 1))
    assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
    assert records.total.bytes == sum(int(line.rsplit(b" ", 1)[1]) for line in data.splitlines())
    ((function, size),) = flat(records).most_common(1)
    assert function == "fil_app.py:1 (<listcomp>)" and 0 <= size - 50 * _MIB < 50 * 100


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("google-pprof-nodejs-5.0.0.pb.gz", "its type 'space' does not say of what"),
        ("google-pprof-nodejs-5.0.0-cpu.pb.gz", "it counts time; ask the service for its heap"),
        ("datadog-pprof-5.20.0-cpu.pb.gz", "it counts time; ask the service for its heap"),
        ("node-20.heapprofile", "is a heap of JavaScript's own objects, not of native memory"),
        ("filprofiler-2024.11.2.prof", "fab: --source live:bytes:1"),
    ],
)
def test_what_a_recorded_profile_lacks_is_said(name: str, why: str) -> None:
    with pytest.raises(OffheapError, match=why):
        detect.parse(content(RECORDED / name), name, Told())


@pytest.mark.parametrize("kind", ["heap", "allocs"])
def test_what_pprof_itself_writes_has_its_numbers(kind: str, program: Path, tmp_path: Path) -> None:
    for number, blocks in enumerate((3000, 9000)):
        go_program.write_profile(program, tmp_path / f"{number}.pb.gz", 4096, blocks, kind=kind)
    merged = ("tool", "pprof", "-proto", "-output=merged.pb.gz", "0.pb.gz", "1.pb.gz")
    go_program.go(tmp_path, *merged)
    for name in ("1.pb.gz", "merged.pb.gz"):
        records = detect.parse(content(tmp_path / name), name, Told())
        total, largest = top_of_pprof(tmp_path / name, "inuse_space", tmp_path)
        own = flat(records)
        assert records.total.bytes == total and {function: own[function] for function in largest} == largest
    go_program.go(tmp_path, "tool", "pprof", "-proto", "-output=less.pb.gz", "-diff_base=1.pb.gz", "0.pb.gz")
    with pytest.raises(OffheapError, match="a number that is negative"):
        detect.parse(content(tmp_path / "less.pb.gz"), "x", Told())


@pytest.mark.parametrize("debug", [0, 1])
@pytest.mark.parametrize("kind", ["goroutine", "threadcreate", "block", "mutex", "cpu"])
def test_go_s_other_profiles_are_told_to_be_no_memory(kind: str, debug: int, program: Path, tmp_path: Path) -> None:
    go_program.write_profile(program, tmp_path / "x", 4096, 10, debug, kind)
    with pytest.raises(OffheapError, match=r"not of memory|none of it is known to be memory") as refused:
        detect.parse(content(tmp_path / "x"), "x", Told())
    assert "/debug/pprof/heap" in str(refused.value)
