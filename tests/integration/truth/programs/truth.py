# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""For each line on stdin one step: documents are parsed by an extension that forgets them, others by none."""

from __future__ import annotations

import sys

import truth_python  # type: ignore[import-not-found]

recent: list[dict[str, int]] = []
print("ready", flush=True)
for _line in sys.stdin:
    for _document in range(256):
        truth_python.parse_document(4096)
    recent = [{str(key): key for key in range(200)} for _table in range(20)]
    print("ready", flush=True)
