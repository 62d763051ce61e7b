# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""New captures of a host into the archive, over its session: the steps of heap_fetch, without a file on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..plugins.plugin_utils.archive.archive import Archive, Capture
from ..plugins.plugin_utils.base import libraries
from ..plugins.plugin_utils.fetch import plan, stream
from ..plugins.plugin_utils.fetch.host_session import Session
from .target import Target

#: what one stream may hold before compression, in bytes: so much is the archive's disk asked for at once
_BATCH = 512 << 20
_MAX_DUMP = _MAX_IMAGE = 1 << 30
_MAX_CAPTURES = 5000

#: told how many further bytes have come
Progress = Callable[[int], None]


@dataclass
class Brought:
    """What a host had: new captures, images by build-id, bytes over the network, and what is worth a warning."""

    captures: list[Capture] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    transferred: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def units(self) -> dict[str, int]:
        """Number of new captures by unit."""
        return dict(Counter(capture.unit for capture in self.captures))


def collect(
    target: Target, session: Session, archive: Archive, units: Sequence[str], progress: Progress = lambda _bytes: None
) -> Brought:
    """Bring what is new and mark it as collected. Raises ArchiveError, HostError, SessionError, TransferError."""
    found = stream.find(session, units, _MAX_DUMP, _MAX_CAPTURES, True)
    listing = plan.read_listing(found, target.name, _MAX_DUMP, _MAX_IMAGE)
    new, known, images = plan.without_known(listing, archive)
    brought = Brought(problems=[*listing.problems, *(f"{unit} has no spool there" for unit in listing.absent)])
    for kind in ("incomplete", "unreadable"):
        if listing.counts[kind]:
            reason = listing.others[kind][0]["reason"]
            brought.problems.append(
                f"{listing.counts[kind]} dumps are {kind} and stay there, the first because {reason}"
            )
    for batch in plan.batches(new, images, _BATCH):
        packed, done = stream.bring(session, archive, batch, progress)
        brought.problems += done.problems
        brought.captures += [capture for capture, added in done.captures if added]
        brought.images += done.images
        brought.transferred += packed.size
        if done.safe:
            _mark(session, done.safe, brought)
    if known:
        _mark(session, known, brought)
    return brought


def _mark(session: Session, safe: list[plan.Found], brought: Brought) -> None:
    problems = stream.mark(session, safe, False).get("problems")
    brought.problems += [str(problem)[:500] for problem in problems] if isinstance(problems, list) else []


def open_archive(path: Path) -> Archive:
    """The archive, made where there is none. Raises ArchiveError, MissingLibraryError."""
    libraries.require("zstandard")
    return Archive.create(Path.cwd() / path.expanduser())
