# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which leaks of an archive are too much: those faster than a limit, or not in a baseline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..base.durations import per_day
from ..base.errors import ControllerError
from ..model.series import Key
from ..model.stack_summary import render as short_path
from .ranking import Leak
from .watched import Watched, last_on_each_host

FORMAT = 1


class BaselineError(ControllerError):
    """A baseline cannot be read. The message says which and why."""


class Offence(NamedTuple):
    """Why a leak fails an assertion, in a sentence without a full stop."""

    unit: str
    text: str


def too_much(
    leaks: Sequence[Leak],
    watched: Sequence[Watched],
    limit: float | None,
    known: Sequence[tuple[str, Key]] | None = None,
) -> list[Offence]:
    """Why leaks fail an assertion: they grow faster than ``limit`` (bytes per
    day on one host), a baseline does not have them, or live memory grows and no code path explains it.

    A leak is faster only if the lower end of its 95 % interval is, so that bad luck in sampling fails nothing.
    """
    found = []
    for leak in leaks:
        rate, error = leak.fastest
        named = f"{leak.unit}: {short_path(leak.path)}"
        if known is not None and not any(unit == leak.unit and _is_same(key, leak.key) for unit, key in known):
            found.append(Offence(leak.unit, f"{named} grows by {per_day(rate)} and is not in the baseline"))
        elif limit is not None and rate - error > limit:
            found.append(Offence(leak.unit, f"{named} grows by {per_day(rate)}, more than {per_day(limit)}"))
    for process in _leaking_now(watched):
        verdict = process.verdict
        if not verdict.suspects and verdict.growth - verdict.error > (limit or 0):
            grows = f"grows by {per_day(verdict.growth)}, spread over many code paths"
            found.append(Offence(process.unit, f"{process.unit} on {process.host} {grows}"))
    return found


def _leaking_now(watched: Sequence[Watched]) -> Iterator[Watched]:
    """Of each unit on each host the processes that ran last, where they leak."""
    judged = [process for process in watched if process.verdict.counts]
    for unit in dict.fromkeys(process.unit for process in judged):
        last = last_on_each_host([process for process in judged if process.unit == unit])
        yield from (process for process in last if process.verdict.answer.leaks)


def baseline(leaks: Sequence[Leak]) -> str:
    """The text of a baseline file, as ``read_baseline`` reads it."""
    entries = [{"unit": leak.unit, "path": list(leak.key)} for leak in leaks]
    return json.dumps({"format": FORMAT, "leaks": entries}, indent=1, ensure_ascii=False) + "\n"


def read_baseline(path: Path) -> list[tuple[str, Key]]:
    """(unit, path of functions) of each leak in a baseline. Raises BaselineError."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise BaselineError(f"{path} is not of format {FORMAT}, the only one this version reads: write it anew")
        return [(str(entry["unit"]), tuple(map(str, entry["path"]))) for entry in data["leaks"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BaselineError(f"{path} is not a baseline: {type(error).__name__}: {error}") from error


def _is_same(first: Key, second: Key) -> bool:
    """Whether one path begins with the other, as when leaks are matched across a fleet. One without functions is only
    itself."""
    shorter = min(len(first), len(second))
    return first[:shorter] == second[:shorter] if shorter else first == second
