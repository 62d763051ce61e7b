# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.export.stacks import collapsed as written
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import collapsed, detect
from ansible_collections.offheap.profiler.plugins.plugin_utils.views import table
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.strategies.samples import samples_of

TOLD = Told(Measure.LIVE, "bytes", 1)


def test_stacks_are_read_from_the_root() -> None:
    data = b"main;Java_java util;inflate 4096\nmain 10 \r\n\n"
    assert detect.source_of(data, "x") == "collapsed"
    records = detect.parse(data, "x", TOLD)
    names = [[records.names[place].function for place in stack] for stack in records.stacks()]
    assert names == [["inflate", "Java_java util", "main"], ["main"]]
    assert (records.measure, records.sampling, records.total) == (Measure.LIVE, EXACT, Counts(0, 4106, 0, 0))


def test_decimals_are_rounded() -> None:
    assert detect.parse(b"main 3.5\nmain;work 1.25\n", "x", TOLD).total.bytes == 5


def test_a_difference_is_no_profile() -> None:
    with pytest.raises(OffheapError, match=r"two numbers in each line.*fab diff"):
        detect.parse(b"cksum;main 31 33\ncksum 4 0\n", "x", TOLD)
    # A name may end with a number.
    assert detect.parse(b"main;worker 3 31\nmain 4\n", "x", TOLD).total.bytes == 35


def test_numbers_mean_what_the_user_says() -> None:
    records = detect.parse(b"main 3\n", "x", Told(Measure.ALLOCATED, "objects"))
    assert (records.measure, records.total) == (Measure.ALLOCATED, Counts(3, 0, 0, 0))
    assert records.sampling.scheme is Scheme.UNKNOWN


@pytest.mark.parametrize("told", [Told(), Told(Measure.LIVE), Told(None, "bytes")])
def test_numbers_of_unknown_meaning_are_refused(told: Told) -> None:
    with pytest.raises(OffheapError, match="set source_unit to bytes or objects, and source_measure"):
        detect.parse(b"main 3\n", "x", told)


def test_our_own_export_is_read_back() -> None:
    samples = samples_of()
    data = b"".join(written(table.Table(samples, table.Granularity.FUNCTIONS, table.Measure.INUSE_SPACE)))
    assert detect.parse(data, "x", TOLD).total.bytes == pytest.approx(samples.total(1), abs=len(samples))


@pytest.mark.parametrize("line", [b"main", b"main x", b"12", b"main 99999999999999999999", b"main -3", b"main 1.5.2"])
def test_a_line_without_a_stack_and_a_number_is_refused(line: bytes) -> None:
    with pytest.raises(OffheapError, match=r"line 2: expected a stack and a number|64 bits"):
        detect.parse(b"main 3\n" + line, "x", TOLD)


@pytest.mark.parametrize("data", [b" " * 300000, b"a " * 300000, b"x" * 300000, b"a;" * 300000 + b" 1"])
def test_a_long_line_takes_no_longer_than_it_is(data: bytes) -> None:
    with costs_at_most(5, 64), pytest.raises(OffheapError):
        detect.parse(b"a 1\n" + data + b"\nb", "x", TOLD)


@given(st.binary(max_size=200))
def test_rubbish_gives_our_error(rubbish: bytes) -> None:
    try:
        collapsed.parse(rubbish, "x", TOLD)
    except OffheapError as error:
        assert str(error).isprintable()
