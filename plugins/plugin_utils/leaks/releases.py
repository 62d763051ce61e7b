# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which release of a program or library a process runs, as far as its files and its command line say, and whether a
known cause is in that release."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...module_utils.formats.capture_facts import CaptureFacts

_RANGE = re.compile(r"([0-9]+(?:\.[0-9]+)*)(?: to ([0-9]+(?:\.[0-9]+)*)| and later)?")
_NUMBERS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})*")


@dataclass(frozen=True)
class Seen:
    """What a process shows of itself: ``texts`` are the paths of its program and its images, and its command line in
    one text; ``build_ids`` are those of its images."""

    texts: tuple[str, ...] = ()
    build_ids: frozenset[str] = frozenset()

    @classmethod
    def of(cls, facts: CaptureFacts) -> Seen:
        paths = [facts.process.exe or "", *(image.path for image in facts.images)]
        return cls((*paths, " ".join(facts.process.cmdline or ())), frozenset(facts.build_ids.values()))


@dataclass(frozen=True)
class Releases:
    """Releases of what people call ``of``. ``ranges`` are "4.3.0" (with all of 4.3.0.x), "24.16 to 24.18" (with all of
    24.18.x) or "1.24 and later". ``seen`` finds a release in a text, as its group; ``builds`` are those by build-id."""

    of: str
    ranges: tuple[str, ...]
    seen: re.Pattern[str]
    builds: Mapping[str, str] = field(default_factory=dict)

    def found(self, seen: Seen, modules: Iterable[str]) -> list[str]:
        """The releases that a process shows, or the names of the modules in a path; empty if nobody knows."""
        known = [self.builds[build_id] for build_id in seen.build_ids & self.builds.keys()]
        texts = (match.group(1) or "" for text in (*seen.texts, *modules) for match in self.seen.finditer(text))
        return sorted({release for release in (*known, *texts) if _NUMBERS.fullmatch(release)})

    def covers(self, release: str) -> bool:
        """Whether a release is one of these."""
        return any(_within(_numbers(release), text) for text in self.ranges)

    @property
    def words(self) -> str:
        """``Node.js 24.16 to 24.19 or 26.0 to 26.5``"""
        return f"{self.of} {' or '.join(self.ranges)}"


def is_range(text: object) -> bool:
    return isinstance(text, str) and _RANGE.fullmatch(text) is not None


def _within(release: tuple[int, ...], text: str) -> bool:
    match = _RANGE.fullmatch(text)
    first = _numbers(match.group(1)) if match else ()
    last = _numbers(match.group(2)) if match and match.group(2) else first
    padded = release + (0,) * (max(len(first), len(last)) - len(release))
    return padded[: len(first)] >= first and (text.endswith("later") or padded[: len(last)] <= last)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
