# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The sentence on who holds a suspect's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.holders import (
    Holders,
    Node,
    Place,
    StackHolders,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.holder_stacks import NamedHolders
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.code_paths import Extent, Suspect
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.holding import Holding, interval
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.who_holds import holding
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import stack_key, stack_of

CACHE, TABLE, LOCAL = Place("/usr/bin/app", 0x10), Place("/usr/bin/app", 0x80), Place("/usr/bin/app", 0x20)
NODES = (
    Node("global", place=CACHE),
    Node("block", 0, 40960),
    Node("block", 1, 32, many=True, place=TABLE),
    Node("stack", thread=17, name="worker-3"),
    Node("thread_local", place=LOCAL, thread=18, name="local-1"),
    Node("mapped"),
    Node("block", 0, 100, many=True),
    Node("thread", thread=19),
    Node("java_heap"),
    Node("epoll"),
)
NAMES = {(CACHE, False): "session_cache", (TABLE, False): "vtable for Session", (LOCAL, True): "mine"}


def path(name: str) -> tuple[Frame, ...]:
    return (Frame(name, "app", Kind.NATIVE, 0), Frame("main", "app", Kind.NATIVE, 0))


SUSPECT = Suspect(path("make"), stack_key(path("make")), Extent.KEY, 1, 1.0, 0.1, 100.0)


def told(lost: int, *held: tuple[int, int], otherwise: int = 0) -> StackHolders:
    looked = lost + otherwise + sum(samples for _node, samples in held)
    return StackHolders((1, 2), looked, 100 * looked, looked, lost, held, otherwise, ((TABLE, looked),))


def found(own: StackHolders, others: tuple[int, int] = (100, 2), *, complete: bool = True) -> NamedHolders:
    look = Holders("d", 1.0, 0.4, complete, True, 1 << 20, 0, NODES, (own,), others)
    return NamedHolders(look, [stack_of(path("make"))], NAMES)


def said(own: StackHolders, others: tuple[int, int] = (100, 2), *, complete: bool = True) -> Holding:
    result = holding(SUSPECT, found(own, others, complete=complete))
    assert result is not None
    return result


def test_what_nobody_holds_is_lost() -> None:
    one = said(told(200))
    assert one.parts[0].kind == "lost" and one.parts[0].low > 0.97
    assert one.text == "100 % (98 to 100 %) lost: nothing leads to them (200 samples of Session)"
    assert "the pointer that make got" in one.next_step


@pytest.mark.parametrize("others", [(0, 0), (9, 0), (100, 60)])
def test_nothing_is_lost_where_others_are_not_found_either(others: tuple[int, int]) -> None:
    one = said(told(200), others)
    assert one.parts[0].kind == "unseen" and "unclear" in one.text and "lost" not in one.text


def test_other_stacks_of_the_look_are_compared_with_too() -> None:
    of_others = replace(found(told(200), (0, 0)).look, stacks=(told(200), told(0, (3, 50))))
    both = NamedHolders(of_others, [stack_of(path("make")), stack_of(path("other"))], NAMES)
    one = holding(SUSPECT, both)
    assert one is not None and one.parts[0].kind == "lost"


@pytest.mark.parametrize(
    ("direct", "by_blocks", "words"),
    [
        (60, 40, "kept by global session_cache of app, mostly directly"),
        (40, 60, "kept by global session_cache of app, mostly through 40960-byte blocks"),
        (3, 97, "kept by global session_cache of app, through 40960-byte blocks"),
    ],
)
def test_several_ways_of_one_holder_are_one_part(direct: int, by_blocks: int, words: str) -> None:
    (part,) = said(told(0, (0, direct), (1, by_blocks))).parts
    assert (part.by, part.samples) == (words, 100)
    through = ("40960-byte blocks",) if by_blocks > direct else ()
    assert part.way == ("global session_cache of app", *through)


@pytest.mark.parametrize(
    ("reached", "living", "kind"),
    # 200 samples of 100 bytes, one in 1024: some 2,150 blocks.
    [(9_000, 12_000, "lost"), (3_000, 12_000, "unseen"), (50, 2_200, "unseen"), (9_000, 0, "unseen")],
)
def test_most_blocks_that_nobody_sampled_are_compared_with_too(reached: int, living: int, kind: str) -> None:
    """As in a JVM, whose own blocks are there before sampling begins."""
    base = found(told(200), (0, 0))
    look = replace(base.look, reached=reached, living=living, interval=1024)
    one = holding(SUSPECT, replace(base, look=look))
    assert one is not None and one.parts[0].kind == kind


@pytest.mark.parametrize(
    ("own", "sizes", "kind"),
    [
        # The number of the suspect's own blocks is known to a few thousands only, which are more than all others.
        ((96,), ((96, 60_000, 0), (32, 700, 600), (64, 300, 280)), "lost"),
        ((96,), ((96, 60_000, 0), (32, 700, 200), (64, 300, 280)), "unseen"),
        ((96,), ((96, 60_000, 0), (32, 50, 50)), "unseen"),
        ((96, 32), ((96, 60_000, 0), (32, 700, 600), (64, 300, 280)), "lost"),
        (tuple(range(16, 272, 16)), ((300, 700, 600),), "unseen"),
        ((), ((32, 700, 600),), "unseen"),
    ],
)
def test_blocks_of_other_sizes_are_compared_with(
    own: tuple[int, ...], sizes: tuple[tuple[int, int, int], ...], kind: str
) -> None:
    base = found(replace(told(400), sizes=own), (3, 0))
    living = sum(count for _size, count, _reached in sizes)
    look = replace(base.look, reached=900, living=living, interval=65536, sizes=sizes)
    one = holding(SUSPECT, replace(base, look=look))
    assert one is not None and one.parts[0].kind == kind


def test_what_of_the_suspect_is_held_says_nothing_of_others() -> None:
    base = found(told(100, (0, 100)), (0, 0))
    look = replace(base.look, reached=1_200, living=3_000, interval=1024)
    one = holding(SUSPECT, replace(base, look=look))
    assert one is not None and {part.kind for part in one.parts} == {"global", "unseen"}


@pytest.mark.parametrize(
    ("symbol", "what"),
    [("PyBytes_Type", "Python's bytes"), ("PyUnicode_Type", "Python's str"), ("some_table", "")],
)
def test_what_they_are_is_told_of_python_too(symbol: str, what: str) -> None:
    base = found(told(200))
    one = holding(SUSPECT, replace(base, names={**NAMES, (TABLE, False): symbol}))
    assert one is not None and one.what == what


def test_nothing_is_lost_where_not_all_was_read() -> None:
    one = said(told(200), complete=False)
    assert one.parts[0].kind == "unseen" and "did not come to an end" in one.text
    swapped = found(told(200), complete=False)
    again = holding(SUSPECT, replace(swapped, look=replace(swapped.look, swapped=4096)))
    assert again is not None and "not all memory was read" in again.text


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (0, "kept by global session_cache of app"),
        (1, "kept by global session_cache of app, through 40960-byte blocks"),
        (2, "kept by global session_cache of app, through 40960-byte blocks → Session (linked)"),
        (3, "kept by the stack of thread worker-3"),
        (4, "kept by thread-local mine of app of thread local-1"),
        (5, "kept by memory that is not the allocator's (mapped by the program or its runtime)"),
        (6, "kept by their own kind (a list or a tree), which global session_cache of app begins"),
        (7, "kept by the descriptor of thread 19"),
        (8, "kept by the Java heap"),
    ],
)
def test_each_way_has_its_words(node: int, words: str) -> None:
    assert [part.by for part in said(told(0, (node, 50))).parts] == [words]


def test_parts_are_shares_with_intervals_and_the_rare_ones_are_told_together() -> None:
    one = said(told(100, (2, 90), (3, 4), (4, 3), otherwise=3))
    assert [(part.kind, part.samples) for part in one.parts] == [("lost", 100), ("global", 90), ("otherwise", 10)]
    assert one.parts[0].low < 0.5 < one.parts[0].high
    assert one.text.startswith("50 % (43 to 57 %) lost: nothing leads to them; 45 % (38 to 52 %) kept by global")


def test_what_only_the_kernel_has_is_told_with_where_to_look() -> None:
    one = said(told(0, (9, 50)))
    assert one.text.startswith("100 % (92 to 100 %) kept by the kernel alone, to be told with an event of epoll (50 ")
    assert "who should close" in one.next_step


def test_a_variable_without_a_name_is_an_address() -> None:
    nameless = replace(found(told(0, (0, 50))), names={})
    one = holding(SUSPECT, nameless)
    assert one is not None and one.parts[0].by == "kept by global app+0x10" and not one.what


def test_slots_of_one_variable_are_one_part() -> None:
    """The elements of an array are nodes of their own."""
    nodes = tuple(Node("global", place=Place("/usr/bin/app", at)) for at in range(0x10, 0x60))
    names = {(node.place, False): "halves" for node in nodes if node.place}
    own = told(10, *((number, 2) for number in range(len(nodes))))
    base = found(own)
    one = holding(SUSPECT, NamedHolders(replace(base.look, nodes=nodes), base.stacks, names))
    assert one is not None and (one.parts[0].by, one.parts[0].samples) == ("kept by global halves of app", 160)


def test_too_few_samples_say_nothing() -> None:
    assert holding(SUSPECT, found(told(4))) is None
    assert holding(SUSPECT, replace(found(told(50)), stacks=[stack_of(path("other"))])) is None


def test_what_a_host_says_is_printable() -> None:
    hostile = Node("stack", thread=1, name="\x1b[31mred")
    base = found(told(0, (0, 50)))
    one = holding(SUSPECT, replace(base, look=replace(base.look, nodes=(hostile,))))
    assert one is not None and "\x1b" not in one.text


def test_the_interval_holds_the_share() -> None:
    for hits, count in ((0, 5), (5, 5), (50, 100)):
        low, high = interval(hits, count)
        assert 0 <= low <= hits / count <= high <= 1
    assert interval(0, 5)[1] > 0.3
