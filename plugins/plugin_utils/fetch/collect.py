# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""New dumps of a host into the archive: list, decide, bring, mark. The one loop, for heap_fetch and the console.

How the host is asked is handed in: over a session (stream.py), or by the steps of a module (the action heap_fetch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...module_utils.formats import limits
from ...module_utils.formats.capture_facts import CaptureFacts
from ...module_utils.formats.errors import OffheapError
from ..archive.archive import Archive
from ..base.byte_size import as_text
from ..base.errors import ControllerError
from . import plan
from .ingest import Ingested, Packed
from .plan import Batch, Found, Listing

#: what stays free on the host's file system while a batch lies there, in bytes
_RESERVE = 32 << 20


class Transport(Protocol):
    """A way to a host. Its methods raise OffheapError, and what the way itself knows for a host that is gone."""

    def find(self) -> dict[str, Any]:
        """The host's listing, for plan.read_listing."""

    def bring(self, archive: Archive, batch: Batch) -> tuple[Packed, Ingested]:
        """A batch into the archive."""

    def mark(self, safe: Sequence[Found]) -> dict[str, Any]:
        """Take the dumps that are safe now out of the way; the answer is for plan.read_marked."""


@dataclass(frozen=True)
class Wanted:
    """What to bring of a host that we know as ``host``. Sizes are in bytes; ``label`` is kept with the captures."""

    host: str
    max_batch: int = 512 << 20
    max_dump: int = limits.LARGEST_DUMP
    max_image: int = 1 << 30
    label: str = ""
    max_captures: int = plan.MOST_CAPTURES


@dataclass
class Collected:
    """What a host had: new captures, new images by build-id, and how much it was before and after packing, in bytes.

    ``marked`` is the number of dumps taken out of the way. ``listing`` is None where the host did not even send one. In
    check mode it is what would have come.
    """

    captures: list[CaptureFacts] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    bytes: int = 0
    transferred: int = 0
    marked: int = 0
    listing: Listing | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return bool(self.captures or self.images or self.marked)


class CollectError(ControllerError):
    """Not all was brought. ``so_far`` is what was."""

    def __init__(self, reason: str, so_far: Collected) -> None:
        brought = len(so_far.captures)
        super().__init__(reason + (f" ({brought} captures had been brought before)" if brought else ""))
        self.so_far = so_far


def collect(
    transport: Transport,
    archive: Archive | None,
    wanted: Wanted,
    check_mode: bool = False,
    say: Callable[[str], None] = lambda _text: None,
) -> Collected:
    """Bring what is new and mark what is safe. Where the archive is None, in check mode, everything is new.

    Raises CollectError, and what the transport raises when the host is gone.
    """
    done = Collected()
    try:
        listing = plan.read_listing(
            transport.find(), wanted.host, wanted.max_dump, wanted.max_image, wanted.label, wanted.max_captures
        )
        done.listing = listing
        done.warnings += _warnings(listing)
        new, known, images = plan.without_known(listing, archive)
        if archive is None or check_mode:
            return _foretell(done, new, known, images)
        batches = list(plan.batches(new, images, max(1, min(wanted.max_batch, listing.free - _RESERVE))))
        for number, batch in enumerate(batches, 1):
            if len(batches) > 1:
                say(f"transfer {number} of {len(batches)}, {as_text(batch.size)}")
            _bring(transport, archive, batch, done)
        archive.confirm(found.facts for found in known)
        _mark(transport, known, done)
    except OffheapError as error:
        raise CollectError(str(error), done) from error
    return done


def _warnings(listing: Listing) -> list[str]:
    """What of a listing somebody should know about."""
    warnings = [*listing.problems, *(f"{unit} has no spool there: it was never profiled" for unit in listing.absent)]
    warnings += [
        f"{listing.counts[kind]} dumps are {kind} and were left there, the first because"
        f" {listing.others[kind][0]['reason']}"
        for kind in ("incomplete", "unreadable")
        if listing.others[kind]
    ]
    nameless = [image["path"] for image in listing.missing_images if image["reason"] in ("replaced", "gone")]
    if nameless:
        warnings.append(
            f"{len(nameless)} files of processes that ended are replaced or gone, the first {nameless[0]}; addresses in"
            " them stay without names"
        )
    if listing.left:
        warnings.append(f"{listing.left} dumps are more than max_captures and were left; run again")
    return warnings


def _foretell(
    done: Collected, new: Sequence[Found], known: Sequence[Found], images: Sequence[plan.WantedImage]
) -> Collected:
    done.captures = [found.facts for found in new]
    done.images = [image.build_id for image in images]
    done.bytes = sum(found.size for found in new) + sum(image.size for image in images)
    done.marked = len(new) + len(known)
    return done


def _bring(transport: Transport, archive: Archive, batch: Batch, done: Collected) -> None:
    """One transfer: bring, verify, store, mark."""
    packed, brought = transport.bring(archive, batch)
    done.warnings += brought.problems
    done.captures += [capture.facts for capture, added in brought.captures if added]
    done.images += brought.images
    done.bytes += sum(packed.members.values())
    done.transferred += packed.size
    _mark(transport, brought.safe, done)


def _mark(transport: Transport, safe: Sequence[Found], done: Collected) -> None:
    if safe:
        marked, problems = plan.read_marked(transport.mark(safe))
        done.marked += marked
        done.warnings += problems
