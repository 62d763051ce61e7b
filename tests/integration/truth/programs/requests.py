# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service with a thread for each request, of which each forgets a block of native memory: see served.h."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

BLOCK, THREADS = 16384, 4
take = ctypes.CDLL(None).malloc
take.argtypes, take.restype = [ctypes.c_size_t], ctypes.c_void_p


def keep_document() -> None:
    take(BLOCK)


def handle_request() -> None:
    keep_document()


def serve(directory: str) -> None:
    forgotten, number, after = 0, 0, time.monotonic()
    with open(f"{directory}/{os.getpid()}.tally", "w", buffering=1) as tally:
        while True:
            if number % 5 == 0:
                tally.write(f"{time.time():.6f} {forgotten}\n")
            threads = [threading.Thread(target=handle_request) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            forgotten += THREADS * BLOCK
            number += 1
            after += 0.05
            time.sleep(max(after - time.monotonic(), 0))


serve(sys.argv[1])
