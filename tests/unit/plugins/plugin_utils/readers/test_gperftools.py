# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, located
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, gperftools
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program

BODY = """\
     2:      200 [     5:      500] @ 0x401011 0x401021
     1:      100 [     1:      100] @

MAPPED_LIBRARIES:
00400000-00402000 r-xp 00001000 fe:00 11                                 /srv/app
"""


def text(kind: str) -> bytes:
    return f"heap profile:      3:      300 [     6:      600] @ {kind}\n{BODY}".encode()


POISSON = Sampling(Scheme.POISSON, 524288)


@pytest.mark.parametrize(
    ("kind", "measure", "sampling", "accumulated"),
    [
        ("heap_v2/524288", Measure.LIVE, POISSON, 0),
        ("heapz_v2/524288", Measure.LIVE, POISSON, 0),
        ("heap/1048576", Measure.LIVE, POISSON, 600),
        ("heap_v2/0", Measure.LIVE, Sampling(Scheme.UNKNOWN), 0),
        ("heapprofile", Measure.LIVE, EXACT, 600),
        ("growth", Measure.GROWN, EXACT, 0),
        ("growthz", Measure.GROWN, EXACT, 0),
    ],
)
def test_the_head_says_what_the_numbers_are(kind: str, measure: Measure, sampling: Sampling, accumulated: int) -> None:
    data = text(kind)
    assert detect.source_of(data, "x") == "gperftools"
    records = detect.parse(data, "x", Told())
    assert (records.measure, records.sampling, records.unbiased) == (measure, sampling, False)
    assert records.total == Counts(3, 300, 6 if accumulated else 0, accumulated)
    assert [[records.addresses[place] for place in stack] for stack in records.stacks()] == [[0x401011, 0x401021], []]
    assert records.mappings[0].path == "/srv/app"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("heapprofile", "fragmentationz"), "not memory that a program holds"),
        (("heapprofile", "heap_v2/99999999999999999999"), "64 bits"),
        (("heapprofile", "HEAP"), "line 1: expected 'heap profile"),
        (("@ 0x401011", "@ 401011"), "line 2: expected a stack"),
        (("@ 0x401011 0x401021", "@ 0x4010110x401021"), "line 2: expected a stack"),
        (("     2:      200", "    -2:     -200"), "line 2: expected a stack"),
        (("     2:      200", "     2: 99999999999999999999"), "64 bits"),
        (("MAPPED_LIBRARIES:", ""), "expected a stack|cut off"),
        (("00400000-00402000 r-xp", "what"), "line 6: expected a line of /proc"),
    ],
)
def test_what_is_wrong_is_said(change: tuple[str, str], why: str) -> None:
    data = text("heapprofile")
    assert change[0].encode() in data
    with pytest.raises(OffheapError, match=why):
        gperftools.parse(data.replace(change[0].encode(), change[1].encode(), 1), "x", Told())


@given(
    st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 4, st.lists(st.integers(0, 2**64 - 1), max_size=5)), max_size=5)
)
def test_what_was_written_is_read_back(stacks: list[tuple[int, int, int, int, list[int]]]) -> None:
    lines = ["heap profile: 0: 0 [0: 0] @ heapprofile"]
    for *counts, addresses in stacks:
        lines.append("{}: {} [{}: {}] @".format(*counts) + "".join(f" {one:#x}" for one in addresses))
    records = gperftools.parse("\n".join([*lines, "", "MAPPED_LIBRARIES:", ""]).encode(), "x", Told())
    read = [[records.addresses[place] for place in stack] for stack in records.stacks()]
    assert read == [addresses for *_counts, addresses in stacks]
    columns = records.counts
    assert list(zip(columns.objects, columns.bytes, columns.accum_objects, columns.accum_bytes, strict=True)) == [
        tuple(counts) for *counts, _addresses in stacks
    ]


@given(st.integers(0, 200), st.binary(max_size=20))
def test_damage_gives_our_error_or_a_profile(at: int, junk: bytes) -> None:
    data = text("heapprofile")
    try:
        gperftools.parse(data[:at] + junk + data[at + len(junk) :], "x", Told())
    except OffheapError as error:
        assert str(error).isprintable()


GO = b"""\
heap profile: 2: 2048 [5: 4096] @ heap/8192
2: 2048 [5: 4096] @ 0x4d970a 0x4d9693
#\t0x4d9709\tmain.leak+0x89\t\t/srv/main.go:4
#\t0x4d9692\tmain.main+0x12\t\t/srv/main.go:5


# runtime.MemStats
# Alloc = 2126646
"""


def test_go_s_text_has_no_maps_and_names_its_frames() -> None:
    records = detect.parse(GO, "x", Told())
    assert (records.sampling, records.total) == (Sampling(Scheme.POISSON, 4096), Counts(2, 2048, 5, 4096))
    assert [(frame.function, frame.file, frame.line) for frame in records.names] == [
        ("main.leak", "/srv/main.go", 4),
        ("main.main", "/srv/main.go", 5),
    ]
    bare = b"".join(line for line in GO.splitlines(keepends=True) if not line.startswith(b"#"))
    assert list(detect.parse(bare, "x", Told()).addresses) == [0x4D970A, 0x4D9693]


def test_a_real_text_of_go_has_the_total_of_its_own_tool(tmp_path: Path) -> None:
    """debug=1, as /debug/pprof/heap?debug=1 gives it."""
    program = go_program.built(tmp_path)
    go_program.write_profile(program, tmp_path / "heap.txt", 4096, 5000, debug=1)
    records = detect.parse((tmp_path / "heap.txt").read_bytes(), "x", Told())
    total = located(records, {}).values[BYTES].sum()
    shown = go_program.go(tmp_path, "tool", "pprof", "-sample_index=inuse_space", "-unit=B", "-top", "heap.txt")
    found = re.search(r"of (\d+)B total", shown)
    assert found and total == pytest.approx(int(found[1]), abs=len(records.stack_ends)), shown
    assert "main.leak" in {frame.function for frame in records.names}


def test_shortened_maps_are_read() -> None:
    head, _maps = text("heap_v2/524288").split(b"MAPPED_LIBRARIES:")
    data = (
        head
        + b"--- Memory map: ---\n source=/home\n  00400000-00fcb000: $source/server\n 00fd0000-00fd1000: librt.so\n"
    )
    records = detect.parse(data, "x", Told())
    assert [mapping.path for mapping in records.mappings] == ["/home/server", "librt.so"]


def test_sampling_that_is_off_says_what_to_set() -> None:
    with pytest.raises(OffheapError, match="TCMALLOC_SAMPLE_PARAMETER"):
        detect.parse(b"%warn\n%warn This heap profile does not have any data in it\n" + text("heap_v2/0"), "x", Told())
