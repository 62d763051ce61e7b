# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which part of a profile to look at: by thread, by what stacks go through, by frame, against a base.

The rules are jeprof's: ``focus`` keeps stacks that go through a match, ``ignore`` drops those, ``retain`` and
``exclude`` keep and drop single frames. A pattern is searched for in the function and, for ``focus`` and ``ignore``,
also in ``file:line`` and in the hexadecimal address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..base import libraries
from ..base.errors import ControllerError
from ..model.samples import Samples, combine

if TYPE_CHECKING:
    import numpy as np

    from ..model.samples import Flags
else:
    np = libraries.optional("numpy")


class SelectionError(ControllerError):
    """The selection is impossible: an invalid pattern, or a thread that the dump does not have."""


@dataclass(frozen=True)
class Selection:
    """What to keep. Empty patterns drop nothing; ``thread`` is jemalloc's own number for a thread."""

    focus: str = ""
    ignore: str = ""
    retain: str = ""
    exclude: str = ""
    thread: int | None = None

    def apply(self, samples: Samples) -> Samples:
        """The selected part. Raises SelectionError."""
        if self.thread is not None:
            if self.thread not in samples.thread_uids():
                known = ", ".join(str(uid) for uid in samples.thread_uids()[:20]) or "none"
                raise SelectionError(f"the dump has no thread {self.thread} (it has: {known})")
            samples = samples.of_thread(self.thread)
        # jeprof's order: first the frames, then the stacks.
        if self.retain:
            samples = samples.keep_places(_matching_frames(samples, self.retain)[samples.place_frame])
        if self.exclude:
            samples = samples.keep_places(~_matching_frames(samples, self.exclude)[samples.place_frame])
        if self.focus:
            samples = samples.keep_stacks(_stacks_through(samples, self.focus))
        if self.ignore:
            samples = samples.keep_stacks(~_stacks_through(samples, self.ignore))
        return samples


def subtract(samples: Samples, base: Samples, drop_negative: bool = False) -> Samples:
    """What ``samples`` has beyond ``base``, stack by stack; negative if less, or 0 with ``drop_negative``."""
    result = combine([(samples, 1.0), (base, -1.0)])
    if drop_negative:
        result = replace(result, values=np.maximum(result.values, 0.0))
    return result


def compiled(pattern: str) -> re.Pattern[str]:
    """The compiled regular expression. Raises SelectionError."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise SelectionError(f"{pattern!r} is not a regular expression: {error}") from error


def _matching_frames(samples: Samples, pattern: str) -> Flags:
    search = compiled(pattern).search
    return np.array([search(frame.label) is not None for frame in samples.frames], dtype=bool)


def _stacks_through(samples: Samples, pattern: str) -> Flags:
    search = compiled(pattern).search
    frames = [
        search(frame.label) is not None or (bool(frame.file) and search(f"{frame.file}:{frame.line}") is not None)
        for frame in samples.frames
    ]
    addresses = [search(f"{location.address:#018x}") is not None for location in samples.locations]
    places = np.array(frames, dtype=bool)[samples.place_frame]
    places |= np.array(addresses, dtype=bool)[samples.place_location]
    through = np.zeros(len(samples), dtype=bool)
    through[samples.stack_of()[places[samples.stacks]]] = True
    return through
