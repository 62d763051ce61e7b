# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""player.py SCRIPT: as player.c does, with byte arrays."""

from __future__ import annotations

import sys
import time
from collections import defaultdict

blocks: defaultdict[int, bytearray] = defaultdict(bytearray)


def keep(block: bytearray, size: int) -> None:
    block.extend(bytes(size - len(block)))


def serve(block: bytearray, size: int) -> None:
    block.extend(bytes(size - len(block)))


def main() -> None:
    start = time.monotonic()
    with open(sys.argv[1]) as script:
        for line in script:
            due, what, number, size, path = line.split()
            left = start + int(due) / 1000 - time.monotonic()
            if left > 0:
                time.sleep(left)
            if what == "-":
                del blocks[int(number)]
            else:
                (keep if path == "0" else serve)(blocks[int(number)], int(size))
    while True:
        time.sleep(3600)


main()
