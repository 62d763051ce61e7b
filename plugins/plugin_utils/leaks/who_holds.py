# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who holds what a suspect has allocated, in words: nobody, so it is lost, or a variable, a thread, other memory.

A share is of the suspect's samples, with a 95 % interval. That nobody holds them is said only where everything that
could hold them was read, and where most samples of other paths, or most other blocks, were found held: else pointers
may be of a kind that is not seen.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from ...module_utils.formats.holders import MOST_SIZES, Holders, Node, Place, StackHolders
from ..base.printable import printable
from ..columns.holder_stacks import NamedHolders
from ..model.frame import Frame
from ..model.sampling import unbias_scale
from ..model.series import Key
from ..symbols.image_names import VTABLE
from .code_paths import Extent, Suspect
from .holding import Held, Holding, interval
from .verdict import Verdict

LEAST_SAMPLES = 5
# Of other paths: so many samples, or blocks, of which so many must be held.
_LEAST_CONTROLS, _LEAST_BLOCKS, _LEAST_HELD = 10, 100, 0.5
# Ways that are rarer are told together, and so are all but the first few.
_RARE, _MOST = 0.05, 4
# Steps of a way that are told: those next to the blocks, and those next to the root.
_STEPS = 2
# The names that CPython gives its types, and those that differ from what a program calls them.
_PYTHON = re.compile(r"_?Py(\w+)_Type")
_RENAMED = {"Unicode": "str", "Long": "int"}
_Way = tuple[str, ...]
_LOST, _UNSEEN, _OTHERWISE = "lost", "unseen", "otherwise"


def with_holders(verdict: Verdict, found: NamedHolders | None) -> Verdict:
    """The verdict, its suspects with who holds what they have allocated, where that was asked."""
    if found is None or not verdict.suspects:
        return verdict
    return replace(verdict, suspects=[replace(one, holding=holding(one, found)) for one in verdict.suspects])


def of_paths(found: NamedHolders) -> list[tuple[tuple[Frame, ...], Holding]]:
    """Who holds what each path of a look has allocated, whether it leaks or not: what most lives of comes first."""
    answers: dict[Key, tuple[tuple[Frame, ...], Holding]] = {}
    for stack in found.stacks:
        if stack.key not in answers:
            answer = holding(Suspect(stack.frames, stack.key, Extent.KEY, 1, 0.0, 0.0, 0.0), found)
            if answer is not None:
                answers[stack.key] = stack.frames, answer
    return list(answers.values())


def holding(suspect: Suspect, found: NamedHolders) -> Holding | None:
    """Who holds what a suspect has allocated; None if too few samples of it were looked at."""
    look = found.look
    own, others = [], [look.others]
    for stack, told in zip(found.stacks, look.stacks, strict=True):
        if suspect.covers(stack.frames):
            own.append(told)
        else:
            others.append((told.looked, told.lost))
    looked = sum(told.looked for told in own)
    if looked < LEAST_SAMPLES:
        return None
    counts: Counter[tuple[str, str]] = Counter()
    ways: dict[tuple[str, str], Counter[_Way]] = {}
    for told in own:
        counts[_LOST, ""] += told.lost
        counts[_OTHERWISE, ""] += told.otherwise
        for node, samples in told.held:
            by, way = _way(found, node, told)
            key = look.nodes[_root(look.nodes, node)].kind, by
            counts[key] += samples
            ways.setdefault(key, Counter())[way] += samples
    controls, lost = sum(number for number, _lost in others), sum(lost for _number, lost in others)
    why = ""
    if not look.complete:
        why = "not all memory was read" if look.swapped else "the look did not come to an end"
    elif not _are_found(controls - lost, controls, _LEAST_CONTROLS) and not _other_blocks_are_found(look, own):
        why = "too few blocks of other paths have a holder that was found, so others may be hidden"
    parts = _parts(counts, ways, looked, why)
    what = _type(found.names, own)
    return Holding(looked, parts, what, _next_step(parts[0], suspect), look.time)


def _are_found(held: float, count: float, least: float) -> bool:
    return count >= least and held >= _LEAST_HELD * count


def _other_blocks_are_found(look: Holders, own: Sequence[StackHolders]) -> bool:
    """Of the process's blocks, sampled or not: of those whose size the suspect has none of, or else of all but the
    suspect's, whose number is known to two deviations."""
    sizes = {size for told in own for size in told.sizes}
    if all(0 < len(told.sizes) < MOST_SIZES for told in own if told.looked):
        others = [(living, reached) for size, living, reached in look.sizes if size not in sizes]
        living, reached = sum(number for number, _reached in others), sum(number for _living, number in others)
        if _are_found(reached, living, _LEAST_BLOCKS):
            return True
    if not look.living or look.interval < 2:
        return False
    most = least = 0.0
    for told in own:
        if told.living:
            blocks = told.living * unbias_scale(told.bytes / told.living, look.interval)
            deviation = 2 * blocks / math.sqrt(told.living)
            least += blocks - deviation
            most += (blocks + deviation) * (1 - told.lost / max(told.looked, 1))
    return _are_found(look.reached - most, look.living - least, _LEAST_BLOCKS)


def _parts(
    counts: Mapping[tuple[str, str], int], ways: Mapping[tuple[str, str], Counter[_Way]], looked: int, unseen: str
) -> tuple[Held, ...]:
    parts: list[Held] = []
    rest = counts[_OTHERWISE, ""]
    ranked = sorted(((samples, key) for key, samples in counts.items() if key[0] != _OTHERWISE), reverse=True)
    for samples, (kind, by) in ranked:
        if not samples:
            continue
        if samples < _RARE * looked or len(parts) == _MOST:
            rest += samples
        elif kind == _LOST and unseen:
            parts.append(_part(_UNSEEN, f"unclear: no holder was found, but {unseen}", samples, looked))
        elif kind == _LOST:
            parts.append(_part(_LOST, "lost: nothing leads to them", samples, looked))
        else:
            ((way, most),) = ways[kind, by].most_common(1)
            mostly = "mostly " if most < (1 - _RARE) * samples else ""
            through = f", {mostly}through {' → '.join(way[1:])}" if way[1:] else ", mostly directly" if mostly else ""
            parts.append(_part(kind, by + through, samples, looked, way))
    if rest:
        parts.append(_part(_OTHERWISE, "in other ways", rest, looked))
    return tuple(parts)


def _part(kind: str, by: str, samples: int, looked: int, way: _Way = ()) -> Held:
    low, high = interval(samples, looked)
    return Held(kind, by, samples, samples / looked, low, high, way)


def _root(nodes: Sequence[Node], number: int) -> int:
    while (parent := nodes[number].parent) is not None:
        number = parent
    return number


def _way(found: NamedHolders, number: int, told: StackHolders) -> tuple[str, _Way]:
    """By whom, and the way: the root, and the blocks between, the one nearest to the root first."""
    nodes = found.look.nodes
    steps = []
    while (parent := nodes[number].parent) is not None:
        steps.append(nodes[number])
        number = parent
    size = round(told.bytes / told.living) if told.living else 0
    # Of an entry of a table and what it leads to, in blocks of one size, nobody knows which of them is linked.
    own_kind = len(steps) == 1 and steps[0].many and steps[0].size == size
    root = _root_words(found, nodes[number])
    by = f"kept by {root}"
    if own_kind:
        by = f"kept by their own kind (a list or a tree), which {root} begins"
        steps = steps[1:]
    words = [_step_words(found.names, step) for step in reversed(steps)]
    if len(words) > 2 * _STEPS:
        words = [*words[:_STEPS], "...", *words[-_STEPS:]]
    return by, (root, *words)


def _root_words(found: NamedHolders, root: Node) -> str:
    thread = f"thread {printable(root.name)}" if root.name else f"thread {root.thread}"
    match root.kind:
        case "global" if root.place is not None:
            return f"global {_variable(found.names, root.place, False)}"
        case "thread_local" if root.place is not None:
            return f"thread-local {_variable(found.names, root.place, True)} of {thread}"
        case "stack":
            return f"the stack of {thread}"
        case "thread":
            return f"the descriptor of {thread}"
        case "java_heap":
            return "the Java heap"
        case "epoll":
            return "the kernel alone, to be told with an event of epoll"
    named = f" {printable(root.name)}" if root.name else ""
    unclear = "" if found.look.blocks_known else ", or by blocks that nobody sampled"
    return f"memory{named} that is not the allocator's (mapped by the program or its runtime{unclear})"


def _variable(names: Mapping[tuple[Place, bool], str], place: Place, local: bool) -> str:
    file = printable(PurePosixPath(place.file).name)
    name = names.get((place, local))
    return f"{name} of {file}" if name else f"{file}+{place.at:#x}"


def _step_words(names: Mapping[tuple[Place, bool], str], step: Node) -> str:
    name = names.get((step.place, False), "") if step.place is not None else ""
    what = name.removeprefix(VTABLE) if name.startswith(VTABLE) else f"{step.size}-byte blocks"
    return f"{what} (linked)" if step.many else what


def _type(names: Mapping[tuple[Place, bool], str], own: Sequence[StackHolders]) -> str:
    """The type of most of them: of C++, by the table of its virtual functions, or of Python, by its object's name."""
    types: Counter[Place] = Counter()
    for told in own:
        for place, samples in told.types:
            types[place] += samples
    for place, samples in types.most_common(1):
        name = names.get((place, False), "")
        if 2 * samples <= sum(min(told.looked, 200) for told in own):
            return ""
        if name.startswith(VTABLE):
            return name.removeprefix(VTABLE)
        if found := _PYTHON.fullmatch(name):
            return f"Python's {_RENAMED.get(found[1], found[1].lower())}"
    return ""


def _next_step(part: Held, suspect: Suspect) -> str:
    function = printable(suspect.path[0].label) if suspect.path else "it"
    match part.kind:
        case "lost":
            return f"Look where the pointer that {function} got is overwritten or goes out of scope, as by a return."
        case "global" | "thread_local" | "stack" | "thread":
            return "Look who should remove them from there, and when."
        case "java_heap":
            return "Look in a heap dump (jcmd PID GC.heap_dump FILE) for the Java objects that own native memory."
        case "epoll":
            return "Look who should close these files or connections (ls -l /proc/PID/fd), and when."
        case "mapped":
            return (
                "Look into the memory of the runtime: of Java, by a heap dump; of an arena, at who should release it."
            )
    return "Ask again when all of the process is in memory, with more time."
