# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A place in the code as valgrind's tools write it, and dhat's crate for Rust:

0x109169: leak (leak.c:4)
0x1091AD: ??? (in /usr/lib/libx.so)
0x48417B4: operator new(unsigned long) (in /usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so)
0x55d43fac: app::keep (src/main.rs:4:9)
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ..model.frame import Frame

# An image may be deleted, or have brackets in its path.
_PLACE = re.compile(
    r"0x([0-9A-Fa-f]{1,16}): (.*?)"
    r"(?: \((?:in ([^()]*(?:\([^()]*\)[^()]*)*)|([^():]*):(\d{1,9})(?::\d{1,9})?)\))?\Z",
    re.DOTALL,
)


def frame_of(text: str) -> Frame | None:
    """The frame; None if the text is no place."""
    match = _PLACE.match(text)
    if match is None:
        return None
    address, function, image, file, line = match.groups()
    if function in ("", "???"):  # they give the address in the process, not where it lies in the file
        function = f"[{int(address, 16):#x}]"
    module = PurePosixPath((image or "").removesuffix(" (deleted)")).name
    return Frame(function, module, file=file or "", line=int(line or 0))
