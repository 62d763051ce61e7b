# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The dump of a capture, checked again: a disk may have damaged it since it was brought."""

from __future__ import annotations

import hashlib

from ..archive.archive import ArchiveError, Capture
from ..base import unpack
from ..base.byte_size import as_text
from ..readers import heap_v2


def read(capture: Capture, largest: int) -> heap_v2.Dump:
    """The dump, parsed, unless it has more than C(largest) bytes. Raises OSError, ArchiveError or HeapFormatError."""
    if capture.facts.dump.size > largest:
        raise ArchiveError(f"{capture.dump} is larger than {as_text(largest)}")
    data = unpack.read(capture.dump, largest)
    if hashlib.sha256(data).hexdigest() != capture.facts.dump.sha256:
        raise ArchiveError(f"{capture.dump} is damaged: its checksum is not the one it had when it was brought")
    return heap_v2.parse(data, f"{capture.dump} ({capture.facts.dump.name})")
