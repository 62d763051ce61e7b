# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Keeps zlib objects: each holds native memory that was allocated below serve_asset."""

from __future__ import annotations

import time
import zlib
from typing import Any

kept: list[Any] = []
ASSET = zlib.compress(b"x" * 100000)


def serve_asset() -> None:
    stream = zlib.decompressobj()
    stream.decompress(ASSET[:50])
    kept.append(stream)


def handle_request() -> None:
    serve_asset()


while True:
    for _ in range(50):
        handle_request()
    if len(kept) > 20000:
        kept.clear()
    time.sleep(0.01)
