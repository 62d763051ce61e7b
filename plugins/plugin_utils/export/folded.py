# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A profile as folded (collapsed) stacks: one line ``root;caller;leaf bytes`` per stack, as flamegraph.pl reads it.

The format knows no escape. A semicolon in a name is written ``%3B`` and a per cent sign ``%25``, so that every line
splits into the frames that there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model.profile import Profile

_NO_STACK = "[no stack]"


def render(profile: Profile) -> str:
    """The stacks in alphabetical order, in one text: see C(lines)."""
    return "".join(lines(profile))


def lines(profile: Profile) -> Iterator[str]:
    """The stacks, frame by frame in alphabetical order; each is rounded to whole bytes, those without any are left out.

    One line at a time: written out, the stacks of a large profile take many times the memory of the profile itself.
    """
    labels = [_escape(frame.label) for frame in profile.frames]
    names = sorted({*labels, _NO_STACK})
    rank = {name: number for number, name in enumerate(names)}
    ranks = [rank[label] for label in labels]
    sums: dict[tuple[int, ...], float] = {}
    for number, stack in enumerate(profile.stacks):
        key = tuple([ranks[index] for index in stack[::-1]]) or (rank[_NO_STACK],)
        sums[key] = sums.get(key, 0.0) + profile.bytes[number]
    for key in sorted(sums):
        size = round(sums[key])
        if size:
            yield f"{';'.join([names[position] for position in key])} {size}\n"


def _escape(name: str) -> str:
    if "%" in name or ";" in name:
        name = name.replace("%", "%25").replace(";", "%3B")
    return name
