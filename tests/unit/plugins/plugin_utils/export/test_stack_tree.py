# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.export.stack_tree import (
    Frames,
    Held,
    StackTree,
    differences,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, Samples
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile, profiles


def _add(tree: StackTree, samples: Samples) -> Held:
    return tree.hold(tree.paths(samples.each_stack_of_frames()), samples.values[BYTES])


def _sizes(tree: StackTree, frames: Frames, held: Held) -> dict[tuple[str, ...], int]:
    """Path from the root -> bytes, as the page reads them."""
    columns, names = tree.columns(), frames.columns()["name"]
    paths: list[tuple[str, ...]] = [()]
    for node in range(1, len(columns["frame"])):
        paths.append((*paths[node - columns["parent"][node]], names[columns["frame"][node]]))
    found = tree.by_node(held)
    return {paths[node]: size for node, size in zip(accumulate(found["nodes"]), found["bytes"], strict=True)}


def test_profiles_meet_by_the_names_of_their_functions() -> None:
    frames = Frames()
    tree = StackTree(frames)
    first = _add(tree, profile({("a", "main"): 10.0, ("b", "main"): 5.0}))
    second = _add(tree, profile({("b", "main"): 7.0, (): 1.0}))
    tree.grow([], 10, 100)
    assert _sizes(tree, frames, first) == {("main", "a"): 10, ("main", "b"): 5}
    assert _sizes(tree, frames, second) == {("main", "b"): 7, ("[no stack]",): 1}
    assert len(tree.columns()["frame"]) == 6  # all, smaller stacks, main, a, b, no stack


def test_no_host_is_told_that_it_has_the_library_of_another() -> None:
    frames = Frames()
    for module in ("libz.so.1.2.11", "libz.so.1.2.13", "libz.so.1.2.11"):
        frames.number(Frame("inflate", module))
    for module in ("libpthread-2.31.so", "libc.so.6", "libc.so.6"):
        frames.number(Frame("start_thread", module))
    for _host in range(2):
        frames.number(Frame("main", "shop"))
    assert frames.columns()["module"] == ["libz.so", "", "shop"]


def test_the_smallest_stacks_are_taken_together_but_never_a_suspects() -> None:
    frames = Frames()
    tree = StackTree(frames)
    held = _add(tree, profile({("large", "main"): 80.0, ("small", "main"): 12.0, ("suspect", "main"): 8.0}))
    wanted = tree.matching(lambda path: path[0].function == "suspect")
    assert tree.grow(wanted, 2, 100) == 0.12
    assert _sizes(tree, frames, held) == {("main", "large"): 80, ("main", "suspect"): 8, ("[smaller stacks]",): 12}
    assert len(tree.leaves(wanted)) == 1


def test_all_of_a_small_thread_is_no_large_part_of_a_dump() -> None:
    tree = StackTree(Frames())
    samples = profile({("large", "main"): 70.0, ("medium", "main"): 20.0, ("small", "main"): 10.0})
    held = _add(tree, samples)
    tree.hold(held.paths[2:], samples.values[BYTES][2:], whole=100.0)
    assert tree.grow([], 2, 100) == 0.1


def _lines(tree: StackTree, frames: Frames) -> dict[str, list[tuple[str, int]]]:
    """Function -> the lines that its node has."""
    columns, names = tree.columns(), frames.columns()["name"]
    return {
        names[columns["frame"][node]]: [columns["sites"][site] for site in seen]
        for node, seen in columns["lines"].items()
    }


def test_a_node_has_the_lines_of_all_its_stacks() -> None:
    frames = Frames()
    tree = StackTree(frames)
    stacks: dict[tuple[str, ...], float] = {
        ("keep at keep.c:5", "main at main.c:10"): 9.0,
        ("keep at keep.c:5", "main at main.c:20"): 8.0,
        ("bare", "main at main.c:10"): 7.0,
        ("small at small.c:1", "main at main.c:30"): 1.0,
    }
    _add(tree, profile(stacks))
    tree.grow([], 2, 100)
    assert _lines(tree, frames) == {"main": [("main.c", 10), ("main.c", 20)], "keep": [("keep.c", 5)]}
    assert len(tree.columns()["sites"]) == 3, "what is left out names no file"


def test_without_debug_information_nothing_is_said_of_lines() -> None:
    frames = Frames()
    tree = StackTree(frames)
    _add(tree, profile({("a", "main"): 10.0}))
    tree.grow([], 10, 100)
    assert set(tree.columns()) == {"parent", "frame"}


def test_a_file_s_name_is_made_printable() -> None:
    frames = Frames()
    tree = StackTree(frames)
    tree.paths([(Frame("main", "app", file="a\x1b[31m.c", line=3),)])
    tree.grow([], 10, 100)
    assert "\x1b" not in tree.columns()["sites"][0][0]


@given(st.lists(profiles(), min_size=1, max_size=3), st.integers(0, 9), st.integers(2, 30))
def test_nothing_is_lost_whatever_is_left_out(found: list[Samples], paths: int, nodes: int) -> None:
    frames = Frames()
    tree = StackTree(frames)
    held = [_add(tree, one) for one in found]
    tree.grow([], paths, nodes)
    for one, kept in zip(found, held, strict=True):
        assert abs(sum(tree.by_node(kept)["bytes"]) - one.total(BYTES)) <= len(one) + 1e-9 * one.total(BYTES)
    parents = tree.columns()["parent"]
    assert all(0 < distance <= node for node, distance in enumerate(parents) if node)


@given(st.lists(st.integers(0, 1000)).map(sorted))
def test_differences_add_up(numbers: list[int]) -> None:
    assert list(accumulate(differences(numbers))) == numbers
