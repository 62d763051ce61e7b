# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The frames of many places as JSON, each frame once, on their way out of the child process that has named them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from ..base.errors import ControllerError
from .frame import Frame, Kind

#: the types of a frame's parts in JSON, where a kind is its text
_PARTS = (str, str, str, int, str, int, str)
_KINDS = {kind.value: kind for kind in Kind}


class FrameTableError(ControllerError):
    """JSON that is not a table of frames. The message says why."""


def packed(places: Iterable[tuple[Frame, ...]]) -> dict[str, Any]:
    """The frames of each place, for ``unpacked``: {"frames": a list for each part, "at": the frames' numbers}.

    A list has one item if all frames are the same there, as they often are but for their functions.
    """
    number: dict[Frame, int] = {}
    at = [[number.setdefault(frame, len(number)) for frame in frames] for frames in places]
    parts = list(zip(*number, strict=True))
    if parts:
        parts[2] = tuple([kind.value for kind in parts[2]])
    return {"frames": [part[:1] if part.count(part[0]) == len(part) else part for part in parts], "at": at}


def unpacked(found: Any) -> list[tuple[Frame, ...]]:
    """The frames of each place. Raises FrameTableError."""
    try:
        parts = found["frames"] or [[] for _part in _PARTS]
        for part, kind in zip(parts, _PARTS, strict=True):
            if set(map(type, part)) - {kind}:
                raise ValueError("a frame is not made of what frames are made of")
        parts[2] = list(map(_KINDS.__getitem__, parts[2]))
        most = max(map(len, parts))
        columns = [part * most if len(part) == 1 else part for part in parts]
        frames = list(map(Frame._make, zip(*columns, strict=True)))
        if min(chain.from_iterable(found["at"]), default=0) < 0:
            raise ValueError("a frame has no number")
        return [tuple(map(frames.__getitem__, numbers)) for numbers in found["at"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FrameTableError(f"what was named is not a table of frames: {type(error).__name__}: {error}") from error
