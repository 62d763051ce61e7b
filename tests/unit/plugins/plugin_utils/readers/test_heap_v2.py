# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import tracemalloc
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_stacks, heap_v2
from ansible_collections.offheap.profiler.tests.unit.strategies import heap_dumps

SMALL = b"""\
heap_v2/524288
  t*: 3: 300 [0: 0]
  t0: 3: 300 [0: 0] main thread
  t7: 0: 0 [0: 0]
@ 0x7f0000001000 0x7f0000002000
  t*: 2: 200 [5: 500]
  t0: 2: 200 [5: 500]
@
  t*: 1: 100 [0: 0]
  t0: 1: 100 [0: 0]

MAPPED_LIBRARIES:
7f0000000000-7f0000010000 r-xp 00001000 08:01 4711                       /usr/lib/My App/libz.so.1 (deleted)
7f0000010000-7f0000020000 rwxp 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def test_a_dump_becomes_columns() -> None:
    dump = heap_v2.parse(SMALL, "small.heap")
    assert (dump.measure, dump.sampling) == (Measure.LIVE, Sampling(Scheme.POISSON, 524288))
    assert dump.total == Counts(3, 300, 0, 0)
    assert [(thread.uid, thread.name) for thread in dump.threads] == [(0, "main thread"), (7, "")]
    assert list(dump.addresses) == [0x7F0000001000, 0x7F0000002000]
    assert [list(stack) for stack in dump.stacks()] == [[0, 1], []]
    assert list(dump.counts.bytes) == [200, 100]
    assert list(dump.counts.accum_objects) == [5, 0]
    assert list(dump.thread_stack) == [0, 1]
    library, jit, vsyscall = dump.mappings
    assert (library.path, library.deleted, library.offset, library.executable) == (
        "/usr/lib/My App/libz.so.1",
        True,
        0x1000,
        True,
    )
    assert (jit.path, jit.executable) == ("", True)
    assert (vsyscall.path, vsyscall.end) == ("[vsyscall]", 0xFFFFFFFFFF601000)


@given(heap_dumps.dumps())
def test_what_was_written_is_read_back(described: heap_dumps.DescribedDump) -> None:
    dump = heap_v2.parse(described.text(), "x")
    assert dump.sampling == Sampling(Scheme.POISSON, described.interval)
    assert dump.total == Counts(*described.total)
    assert [(thread.uid, thread.counts, thread.name) for thread in dump.threads] == [
        (uid, Counts(*counts), name) for uid, counts, name in described.threads
    ]
    assert [[dump.addresses[index] for index in stack] for stack in dump.stacks()] == [
        stack.addresses for stack in described.stacks
    ]
    assert len(set(dump.addresses)) == len(dump.addresses)
    columns = dump.counts
    assert list(zip(columns.objects, columns.bytes, columns.accum_objects, columns.accum_bytes, strict=True)) == [
        stack.counts for stack in described.stacks
    ]
    threads = dump.thread_counts
    assert list(zip(dump.thread_stack, dump.thread_uid, threads.objects, threads.bytes, strict=True)) == [
        (number, uid, counts[0], counts[1])
        for number, stack in enumerate(described.stacks)
        for uid, counts in stack.threads
    ]
    assert [(m.start, m.end, m.permissions, m.offset, m.path, m.deleted) for m in dump.mappings] == [
        (m.start, m.start + m.size, m.permissions, m.offset, m.path, m.deleted) for m in described.mappings
    ]


@given(heap_dumps.dumps(), st.integers(1, 300))
def test_a_dump_is_the_same_in_blocks_of_any_size(described: heap_dumps.DescribedDump, size: int) -> None:
    read = []
    for block in (size, 1 << 18):
        with mock.patch.object(heap_stacks, "_BLOCK", block):
            dump = heap_v2.parse(described.text(), "x")
        stacks = [[dump.addresses[index] for index in stack] for stack in dump.stacks()]
        read.append((stacks, dump.counts.bytes, dump.thread_stack, dump.thread_uid, dump.thread_counts.bytes))
    assert read[0] == read[1]


@given(heap_dumps.dumps(), st.data())
def test_a_dump_that_is_cut_off_is_refused_or_lacks_only_mappings(
    described: heap_dumps.DescribedDump, data: st.DataObject
) -> None:
    text = described.text()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    heading = text.rindex(b"\nMAPPED_LIBRARIES:\n") + len(b"\nMAPPED_LIBRARIES:\n")
    if len(cut) >= heading and cut.endswith(b"\n"):
        assert len(heap_v2.parse(cut, "x").counts) == len(described.stacks)
    else:
        with pytest.raises(heap_v2.HeapFormatError):
            heap_v2.parse(cut, "x")


@given(heap_dumps.dumps(), st.lists(st.tuples(st.integers(0), st.binary(max_size=8)), min_size=1, max_size=5))
def test_a_damaged_dump_gives_our_error_or_a_dump(
    described: heap_dumps.DescribedDump, damages: list[tuple[int, bytes]]
) -> None:
    text = bytearray(described.text())
    for position, junk in damages:
        position %= len(text)
        text[position : position + len(junk)] = junk
    _parse_or_refuse(bytes(text))


@given(st.binary(max_size=200))
@example(b"heap_v2/1\n  t*: 99999999999999999999: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n")
@example(b"heap_v2/99999999999999999999\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n")
@example(b"heap_v2/1\n  t*: 1: 1 [0: 0]\n@ 0x1_0\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n")
@example(b"heap_v2/1\n  t*: 1: 1 [0: 0]\n@ 0x\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n")
def test_rubbish_gives_our_error(rubbish: bytes) -> None:
    _parse_or_refuse(rubbish)
    _parse_or_refuse(b"heap_v2/524288\n  t*: 1: 1 [0: 0]\n" + rubbish + b"\nMAPPED_LIBRARIES:\n" + rubbish)


def _parse_or_refuse(data: bytes) -> None:
    try:
        heap_v2.parse(data, "x")
    except heap_v2.HeapFormatError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize(
    ("change", "line", "expected"),
    [
        ((b"heap_v2/524288", b"heap_v3/524288"), 1, "the header 'heap_v2/<sample interval>', found 'heap_v3/524288'"),
        ((b"heap_v2/524288", b"heap profile:  1: 2 [ 1: 2] @ heap/1"), 1, "the header 'heap_v2/<sample interval>'"),
        ((b"heap_v2/524288", b"heap_v2/99999999999999999999"), 1, "numbers of at most 64 bits"),
        ((b"  t*: 3: 300", b"  t*: x: 300"), 2, "the totals"),
        ((b"  t*: 2: 200 [5: 500]\n", b""), 5, "a stack"),
        ((b"0x7f0000002000", b"7f0000002000"), 5, "addresses like 0x"),
        ((b"t0: 2: 200", b"t0: 2: 99999999999999999999"), 5, "numbers of at most 64 bits"),
        ((b"t7: 0: 0", b"t7: 0: 99999999999999999999"), 4, "numbers of at most 64 bits"),
        ((b"\nMAPPED_LIBRARIES:\n", b"\n"), 14, "'MAPPED_LIBRARIES:' before the end of the file"),
        ((b"rwxp 00000000 00:00 0\n", b"rwxp 000"), 14, "a line of /proc/<pid>/maps"),
    ],
)
def test_errors_say_file_line_and_what_was_expected(change: tuple[bytes, bytes], line: int, expected: str) -> None:
    assert change[0] in SMALL
    with pytest.raises(heap_v2.HeapFormatError) as caught:
        heap_v2.parse(SMALL.replace(change[0], change[1], 1), "dir/a.heap")
    assert str(caught.value).startswith(f"dir/a.heap, line {line}: expected ")
    assert expected in str(caught.value)


def test_a_dump_cut_off_in_its_last_line_says_so() -> None:
    with pytest.raises(heap_v2.HeapFormatError, match=r"line 15: .*the dump is cut off here"):
        heap_v2.parse(SMALL[:-5], "a.heap")


@pytest.mark.parametrize(
    ("unit", "bound"),
    [
        ("@ 0x{0:x}\n  t*: 1: 1 [0: 0]\n", 12),
        ("@\n  t*: 1: 1 [0: 0]\n", 4),
        ("@ 0x1 0x1 0x1 0x1 0x1 0x1 0x1 0x1 0x1 0x1 0x1 0x1\n  t*: 1: 1 [0: 0]\n", 4),
        ("@\n  t*: 1: 1 [0: 0]\n  t1: 1: 1 [0: 0]\n  t1: 1: 1 [0: 0]\n", 4),
    ],
)
def test_memory_is_a_bounded_multiple_of_the_file(unit: str, bound: int) -> None:
    # So many that the memory for blocks does not count.
    body = "".join(unit.format(number) for number in range(200000))
    data = f"heap_v2/1\n  t*: 1: 1 [0: 0]\n{body}\nMAPPED_LIBRARIES:\n".encode()
    tracemalloc.start()
    try:
        heap_v2.parse(data, "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bound * len(data)


def test_memory_of_many_mappings_is_bounded_too() -> None:
    data = b"heap_v2/1\n  t*: 1: 1 [0: 0]\n\nMAPPED_LIBRARIES:\n" + b"0-1 r--p 0 0:0 0\n" * 50000
    tracemalloc.start()
    try:
        heap_v2.parse(data, "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(data)
