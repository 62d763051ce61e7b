# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Known causes of leaks, matched to suspects. The causes are in hints.yml, which also describes their form."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import libraries
from ..base.errors import ControllerError
from ..model.frame import Frame
from .releases import Releases, Seen, is_range
from .verdict import Answer

if TYPE_CHECKING:
    import yaml
else:
    yaml = libraries.optional("yaml")

_OWN = Path(__file__).with_name("hints.yml")
_WIDTH = 90
NOTHING_SEEN = Seen()
_OF_RELEASES = ("of", "releases", "seen", "builds")
_KEYS = {"id", "title", "match", "within", *_OF_RELEASES, "verdict", "part", "share", "check", "link"}


class HintError(ControllerError):
    """A file of hints is invalid. The message says which entry and why."""


@dataclass(frozen=True)
class Hint:
    """A known cause: see hints.yml."""

    id: str
    title: str
    check: str
    link: str
    patterns: tuple[re.Pattern[str], ...] = ()
    within: int = 0
    verdict: str = ""
    part: str = ""
    share: float = 0.0
    releases: Releases | None = None

    @property
    def text(self) -> str:
        """Title, check and link, each on its own lines, wrapped for a terminal."""
        check = textwrap.wrap(self.check, _WIDTH)
        return "\n".join([f"{self.title}?", *check, *([self.link] if self.link else [])])

    @property
    def told(self) -> dict[str, str]:
        """The same for a page, which makes a link of it."""
        return {"title": self.title, "check": self.check, "link": self.link}

    def fits(self, path: Sequence[Frame]) -> bool:
        """Whether one of the functions or modules of a path (leaf first) points to this cause."""
        frames = path[: self.within] if self.within else path
        names = {name for frame in frames for name in (frame.label, frame.module)}
        return any(pattern.fullmatch(name) for name in names for pattern in self.patterns)

    def of(self, path: Sequence[Frame], seen: Seen) -> Hint | None:
        """The hint for a path of a process, its title with the release that is affected; None if it is none for it."""
        if not self.fits(path):
            return None
        if self.releases is None:
            return self
        found = self.releases.found(seen, {frame.module for frame in path})
        affected = [release for release in found if self.releases.covers(release)]
        if found and not affected:
            return None
        which = f" ({self.releases.of} {affected[0]})" if affected else f", if this is {self.releases.words}"
        return replace(self, title=self.title + which)


def load(files: Sequence[Path] = ()) -> list[Hint]:
    """The hints of these files, then our own except those whose id a file has. Raises HintError."""
    found: dict[str, Hint] = {}
    for path in files:
        for hint in _read(path):
            found.setdefault(hint.id, hint)
    for hint in _built_in():
        found.setdefault(hint.id, hint)
    return list(found.values())


def for_path(hints: Sequence[Hint], path: Sequence[Frame], seen: Seen = NOTHING_SEEN) -> list[Hint]:
    """The hints for a suspect's path in a process that shows this of itself."""
    return [told for hint in hints if (told := hint.of(path, seen)) is not None]


def for_verdict(hints: Sequence[Hint], answer: Answer, shares: Mapping[str, float]) -> list[Hint]:
    """The hints for a unit on a host with this verdict, and these shares (0 to 1) of its resident memory by part."""
    fitting = [hint for hint in hints if hint.verdict == answer.value]
    return [hint for hint in fitting if hint.part in shares and shares[hint.part] >= hint.share]


@cache
def _built_in() -> tuple[Hint, ...]:
    return tuple(_read(_OWN))


def _read(path: Path) -> list[Hint]:
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HintError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise HintError(f"{path} is not YAML: {error}") from error
    if not isinstance(entries, list):
        raise HintError(f"{path} is not a list of hints")
    return [_hint(entry, f"{path}, entry {number}") for number, entry in enumerate(entries, 1)]


def _hint(entry: Any, where: str) -> Hint:
    if not isinstance(entry, dict):
        raise HintError(f"{where} is not a mapping")
    if unknown := sorted(map(str, set(entry) - _KEYS)):
        raise HintError(f"{where} has an unknown key {unknown[0]!r}; a hint has {', '.join(sorted(_KEYS))}")
    texts = {key: entry.get(key, "") for key in ("id", "title", "check", "link", "verdict", "part")}
    for key, text in texts.items():
        if not isinstance(text, str) or (key not in ("link", "verdict", "part") and not text.strip()):
            raise HintError(f"{where}: {key} is missing or not text")
    match, within = entry.get("match", []), entry.get("within", 0)
    if not isinstance(match, list) or not all(isinstance(text, str) for text in match):
        raise HintError(f"{where}: match is not a list of regular expressions")
    if not isinstance(within, int) or within < 0:
        raise HintError(f"{where}: within is not a number of functions")
    if bool(match) == bool(texts["verdict"]):
        raise HintError(f"{where} needs either match or verdict")
    if texts["verdict"] and texts["verdict"] not in [answer.value for answer in Answer]:
        raise HintError(f"{where}: verdict must be one of {', '.join(answer.value for answer in Answer)}")
    share = entry.get("share", 0)
    if bool(texts["verdict"]) != bool(texts["part"]) or ("share" in entry) != bool(texts["part"]):
        raise HintError(f"{where}: verdict, part and share belong together")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise HintError(f"{where}: share is not a number from 0 to 1")
    patterns = tuple(_pattern(text, where) for text in match)
    return Hint(**texts, patterns=patterns, within=within, share=float(share), releases=_releases(entry, where))


def _pattern(text: str, where: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise HintError(f"{where}: {error.pattern!r} is not a regular expression: {error}") from error


def _releases(entry: dict[str, Any], where: str) -> Releases | None:
    if not any(key in entry for key in _OF_RELEASES):
        return None
    of, ranges, seen, builds = (entry.get(key) for key in _OF_RELEASES)
    if not isinstance(of, str) or not isinstance(seen, str) or not isinstance(ranges, list) or not ranges:
        raise HintError(f"{where}: of, releases and seen belong together")
    if wrong := [text for text in ranges if not is_range(text)]:
        raise HintError(f"{where}: {wrong[0]!r} is none of '4.2', '4.2 to 4.3' and '4.2 and later'")
    pattern, builds = _pattern(seen, where), {} if builds is None else builds
    if pattern.groups != 1:
        raise HintError(f"{where}: seen needs one group, which is the release")
    if not isinstance(builds, dict) or not all(isinstance(text, str) for pair in builds.items() for text in pair):
        raise HintError(f"{where}: builds are not releases by build-id")
    return Releases(of, tuple(ranges), pattern, builds)
