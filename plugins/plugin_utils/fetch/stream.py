# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps of a host over a session: list them, bring a batch into the archive, mark what is safe.

No part of a batch is written to the host's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils.formats import limits
from ..archive.archive import Archive
from ..model.raw import Told
from . import ingest, unpack_tar
from .host_session import Session
from .ingest import Ingested, Packed
from .plan import MOST_BYTES, Batch, Found
from .unpack_tar import TransferError

#: seconds of silence while a host reads its dumps or a JVM writes its perf map
_PATIENCE = 300.0


@dataclass(frozen=True)
class SessionTransport:
    """A transport for collect.py. ``ask_jvms`` also examines each JVM's own memory; ``delete`` removes what is safe.

    ``came`` is called with the number of bytes that have just arrived, ``told`` is what the user says of offered
    profiles. Failures raise HostError or SessionError.
    """

    session: Session
    units: Sequence[str]
    max_dump: int
    max_captures: int
    ask_jvms: bool = True
    delete: bool = False
    came: Callable[[int], None] = lambda _bytes: None
    told: Told | None = None

    def find(self) -> dict[str, Any]:
        options = {"units": list(self.units), "max_dump": self.max_dump, "max_captures": self.max_captures}
        return self.session.ask("find", _PATIENCE, options=options, ask_jvms=self.ask_jvms)

    def bring(self, archive: Archive, batch: Batch) -> tuple[Packed, Ingested]:
        """Stream the batch, verify and store it. Also raises ArchiveError and TransferError."""
        unpack_tar.check_room(archive.root, 2 * batch.size)
        limit = ingest.most_packed({**dict.fromkeys(batch.made(), limits.LARGEST_PERF_MAP), **batch.sizes()})
        limit = min(limit, MOST_BYTES)
        taken = 0
        with archive.incoming() as aside:
            file = aside / "transfer.tar"
            with file.open("xb") as output:

                def take(block: bytes) -> None:
                    nonlocal taken
                    taken += len(block)
                    if taken > limit:
                        raise TransferError(
                            f"the host sends more than the {limit} bytes that its packed dumps can take"
                        )
                    try:
                        output.write(block)
                    except OSError as error:
                        raise TransferError(
                            f"{file} cannot be written on the controller: {error.strerror}. What came before it is in"
                            " the archive; correct that and run this again"
                        ) from error
                    self.came(len(block))

                answer = self.session.ask("stream", _PATIENCE, take, request=batch.request())
            packed = ingest.read_packed(answer, batch)
            return packed, ingest.ingest(archive, batch, packed, file, aside, self.told)

    def mark(self, safe: Sequence[Found]) -> dict[str, Any]:
        return self.session.ask("mark", dumps=[found.mark() for found in safe], delete=self.delete)
