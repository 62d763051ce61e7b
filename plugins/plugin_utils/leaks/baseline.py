# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which leaks of an archive are too much: faster than a limit, or not among those that a baseline knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.durations import per_day
from ..base.errors import ControllerError
from ..model.series import Key
from ..model.stack_summary import render as short_path
from .ranking import Leak

FORMAT = 1


class BaselineError(ControllerError):
    """A baseline cannot be read. The message says which and why."""


@dataclass(frozen=True)
class Offence:
    """A leak and why it is too much, in one sentence without a full stop."""

    leak: Leak
    reason: str


def too_much(
    leaks: Sequence[Leak], limit: float | None, known: Sequence[tuple[str, Key]] | None = None
) -> list[Offence]:
    """The leaks that grow faster than ``limit`` (bytes per day on one host), or that a baseline does not know.

    A leak is faster when the lower end of its 95 % interval is, so that luck in sampling fails nothing.
    """
    found = []
    for leak in leaks:
        rate, surely = leak.example.growth, leak.example.growth - leak.example.error
        named = f"{leak.unit}: {short_path(leak.path)}"
        if known is not None and not any(unit == leak.unit and _is_same(key, leak.key) for unit, key in known):
            found.append(Offence(leak, f"{named} grows by {per_day(rate)} and is not in the baseline"))
        elif limit is not None and surely > limit:
            found.append(Offence(leak, f"{named} grows by {per_day(rate)}, more than {per_day(limit)}"))
    return found


def baseline(leaks: Sequence[Leak]) -> str:
    """The text of a file that ``read_baseline`` reads."""
    entries = [{"unit": leak.unit, "path": list(leak.key)} for leak in leaks]
    return json.dumps({"format": FORMAT, "leaks": entries}, indent=1, ensure_ascii=False) + "\n"


def read_baseline(path: Path) -> list[tuple[str, Key]]:
    """(unit, path of functions) of the leaks of a baseline. Raises BaselineError."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise BaselineError(f"{path} is not of format {FORMAT}, the one that this version knows")
        return [(str(entry["unit"]), tuple(map(str, entry["path"]))) for entry in data["leaks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BaselineError(f"{path} is no baseline: {type(error).__name__}: {error}") from error


def _is_same(first: Key, second: Key) -> bool:
    """As in a fleet: one path begins with the other."""
    shorter = min(len(first), len(second))
    return first[:shorter] == second[:shorter]
