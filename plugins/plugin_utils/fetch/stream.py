# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps of a host over a session: what is there, a batch of it into the archive, and what is safe then.

Nothing of a batch is written to the host's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...module_utils.formats import limits
from ..archive.archive import Archive
from . import ingest, unpack_tar
from .host_session import Session
from .ingest import Ingested, Packed
from .plan import Batch, Found
from .unpack_tar import TransferError

#: seconds of silence, while a host reads its dumps or a JVM writes where its code lies
_PATIENCE = 300.0


def find(session: Session, units: Sequence[str], max_dump: int, max_captures: int, ask_jvms: bool) -> dict[str, Any]:
    """The host's listing, for fetch_plan.read_listing. Raises HostError, SessionError."""
    options = {"units": list(units), "max_dump": max_dump, "max_captures": max_captures}
    return session.ask("find", _PATIENCE, options=options, ask_jvms=ask_jvms)


def bring(
    session: Session, archive: Archive, batch: Batch, came: Callable[[int], None] = lambda _bytes: None
) -> tuple[Packed, Ingested]:
    """Stream a batch, verify it and store it; C(came) is told how many further bytes have come.

    Raises ArchiveError, HostError, SessionError, TransferError.
    """
    unpack_tar.check_room(archive.root, 2 * batch.size)
    limit = ingest.most_packed({**dict.fromkeys(batch.made(), limits.LARGEST_PERF_MAP), **batch.sizes()})
    taken = 0
    with archive.incoming() as aside:
        file = aside / "transfer.tar.gz"
        with file.open("xb") as output:

            def take(block: bytes) -> None:
                nonlocal taken
                taken += len(block)
                if taken > limit:
                    raise TransferError(f"the host sends more than the {limit} bytes that its dumps can be packed into")
                output.write(block)
                came(len(block))

            answer = session.ask("stream", _PATIENCE, take, request=batch.request())
        packed = ingest.read_packed(answer, batch)
        return packed, ingest.ingest(archive, batch, packed, file, aside)


def mark(session: Session, safe: Sequence[Found], delete: bool) -> dict[str, Any]:
    """Take the dumps that are safe now out of the way; the host's answer. Raises HostError, SessionError."""
    return session.ask("mark", dumps=[found.mark() for found in safe], delete=delete)
