# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, gperftools

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
        ("heap/1048576", Measure.LIVE, POISSON, 0),
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
