# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Stacks of the same code, compiled differently.

A compiler inlines small functions into their callers. A perf map knows only the function that is left, so the better
the code, the fewer names a stack has: ``Inflater.inflate ← Frontend.serveAsset ← FutureTask.run`` in the first minute
becomes ``Inflater.inflate ← FutureTask.run`` later. The earlier stack tells people more about the same path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_INTERPRETED = "Interpreter"
_LEAST_SHARE = 0.05


def least_inlined(path: Sequence[str], live: Mapping[tuple[str, ...], float]) -> tuple[str, ...]:
    """The stack with the most names that may be ``path`` with fewer calls inlined; if there is none, ``path``.

    Stacks are names, leaf first; ``live`` has their bytes. A stack with hardly any bytes does not count.
    """
    own = tuple(path)
    found = [
        other
        for other, size in live.items()
        if size >= _LEAST_SHARE * live.get(own, 0.0) and _named(other) > _named(own) and is_inlined(own, other)
    ]
    return max(found, key=lambda other: (_named(other), live[other]), default=own)


def is_inlined(path: Sequence[str], other: Sequence[str]) -> bool:
    """Whether ``other`` has all functions of ``path`` in order; those still interpreted there have no name."""
    wanted = [name for name in path if name != _INTERPRETED]
    position = 0
    for name in other:
        if position < len(wanted) and (name == wanted[position] or (name == _INTERPRETED and "." in wanted[position])):
            position += 1
    return position == len(wanted)


def _named(path: Sequence[str]) -> int:
    return sum(name != _INTERPRETED for name in path)
