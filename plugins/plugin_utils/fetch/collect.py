# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""New dumps of a host into the archive: list, decide, transfer, mark. The one loop for heap_fetch and the console.

The way to the host is handed in: a session (stream.py), or the steps of a module (the action heap_fetch).
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
from ..base.printable import printable
from . import plan, unpack_tar
from .ingest import Ingested, Packed
from .plan import Batch, Found, Listing

#: bytes to keep free on the host's file system while it holds a batch
_RESERVE = 32 << 20
#: bytes of images among them: files that a service maps, with which one may not crowd out the others' dumps
_MOST_OF_IMAGES = limits.LARGEST_IMAGE


class Transport(Protocol):
    """A way to a host. Its methods raise OffheapError, and their own exception for an unreachable host."""

    def find(self) -> dict[str, Any]:
        """The host's listing, for plan.read_listing."""

    def bring(self, archive: Archive, batch: Batch) -> tuple[Packed, Ingested]:
        """Transfer a batch into the archive."""

    def mark(self, safe: Sequence[Found]) -> dict[str, Any]:
        """Move the dumps that are now safe out of the way; the answer is for plan.read_marked."""


@dataclass(frozen=True)
class Wanted:
    """What to collect from a host named ``host``. Sizes are in bytes; ``label`` is kept with the captures."""

    host: str
    max_batch: int = 512 << 20
    max_dump: int = limits.LARGEST_DUMP
    max_image: int = 1 << 30
    label: str = ""
    max_captures: int = plan.MOST_CAPTURES


@dataclass
class Collected:
    """What a host had: new captures, new images by build-id, and their bytes before and after packing.

    ``marked`` is the number of dumps moved out of the way. ``listing`` is None if the host did not even send one. In
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
    """Not everything was collected. ``so_far`` is what was."""

    def __init__(self, reason: str, so_far: Collected) -> None:
        brought = len(so_far.captures)
        before = "1 capture was" if brought == 1 else f"{brought} captures were"
        super().__init__(reason + (f" ({before} collected before that)" if brought else ""))
        self.so_far = so_far


def collect(
    transport: Transport,
    archive: Archive | None,
    wanted: Wanted,
    check_mode: bool = False,
    say: Callable[[str], None] = lambda _text: None,
) -> Collected:
    """Collect what is new and mark what is safe. If the archive is None, in check mode, everything is new.

    Raises CollectError, and what the transport raises for an unreachable host.
    """
    done = Collected()
    try:
        listing = plan.read_listing(
            transport.find(), wanted.host, wanted.max_dump, wanted.max_image, wanted.label, wanted.max_captures
        )
        done.listing = listing
        done.warnings += _warnings(listing)
        new, known, lacking = plan.without_known(listing, archive)
        host_room = listing.free - _RESERVE
        limit = max(1, min(wanted.max_batch, host_room))
        packable = [image for image in lacking if image.size <= host_room]
        images = plan.smallest(packable, _room_for_images(archive, new, limit))
        if staying := set(lacking) - set(images):
            largest = max(staying, key=lambda image: image.size)
            done.warnings.append(
                f"images stay on the host, {len(staying)} of them, the largest {printable(largest.path)} with"
                f" {as_text(largest.size)}: one run takes {as_text(_MOST_OF_IMAGES)} of them from a host, and what the"
                " archive and the host's temporary directory have room for; functions in them have no names"
            )
        if archive is not None:
            damaged = filter(None, [archive.damage(found.facts) for found in new])
            done.warnings += [f"{damage}; the host still has this dump, which takes its place" for damage in damaged]
        if archive is None or check_mode:
            return _foretell(done, new, known, images)
        batches = list(plan.batches(new, images, limit))
        for number, batch in enumerate(batches, 1):
            if done.bytes and done.bytes + batch.size > plan.MOST_BYTES:
                left = sum(len(later.dumps) for later in batches[number - 1 :])
                done.warnings.append(
                    f"{left} dumps exceed the {as_text(plan.MOST_BYTES)} that one run takes from a host, and stay"
                    " there; run again"
                )
                break
            if len(batches) > 1:
                say(f"transfer {number} of {len(batches)}, {as_text(batch.size)}")
            _bring(transport, archive, batch, done)
        archive.confirm(found.facts for found in known)
        _mark(transport, known, done)
    except OffheapError as error:
        raise CollectError(str(error), done) from error
    except OSError as error:
        place = archive.where if archive else "the controller"
        raise CollectError(
            f"the archive {place} cannot be written: {error.strerror} ({error.filename or 'no path'}). Was it moved, or"
            " is its disk full?",
            done,
        ) from error
    return done


def _room_for_images(archive: Archive | None, dumps: Sequence[Found], limit: int) -> int:
    """The bytes of images that leave room for the dumps, which come after them in batches of up to ``limit``."""
    if archive is None or not archive.root.exists():
        return _MOST_OF_IMAGES
    size = sum(found.whole_size for found in dumps)
    # A batch is there twice for a moment: packed and unpacked.
    return min(_MOST_OF_IMAGES, (unpack_tar.room(archive.root) - size - min(size, limit)) // 2)


def _warnings(listing: Listing) -> list[str]:
    """What users should know about a listing."""
    warnings = [*listing.problems, *(f"{unit} has no spool: it was never profiled" for unit in listing.absent)]
    warnings += [
        f"{listing.counts[kind]} dumps are {kind} and stay on the host, the first because"
        f" {listing.others[kind][0]['reason']}"
        for kind in ("incomplete", "unreadable")
        if listing.others[kind]
    ]
    nameless = [image["path"] for image in listing.missing_images if image["reason"] in ("replaced", "gone")]
    if nameless:
        warnings.append(
            f"{len(nameless)} files of ended processes were replaced or removed, the first is {nameless[0]}; addresses"
            " in them cannot be symbolized"
        )
    if listing.left:
        warnings.append(f"{listing.left} dumps exceed max_captures and stay on the host; run again")
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
    """One transfer: fetch, verify, store, mark."""
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
