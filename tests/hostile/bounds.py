# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What an input may cost: seconds of CPU and MiB, of Python code here and of native code in a child process."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_COLLECTIONS = Path(__file__).resolve().parents[2] / ".cache" / "collections"
_MIB = 1 << 20


@contextmanager
def costs_at_most(seconds: float, mib: float) -> Iterator[None]:
    """Fails when what is done inside takes more. Tracing makes Python some three times slower, which counts."""
    tracemalloc.start()
    began = time.process_time()
    try:
        yield
        taken, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1] / _MIB
    finally:
        tracemalloc.stop()
    assert taken <= seconds, f"{taken:.1f} s of CPU"
    assert peak <= mib, f"{peak:.1f} MiB"


def in_child(code: str, seconds: int, mib: int) -> str:
    """Run Python code in a process with so much CPU and address space. Returns what it prints; it must end well."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (mib * _MIB,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    program = f"import sys; sys.path.insert(0, {str(_COLLECTIONS)!r})\n{code}"
    result = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=limit, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, f"status {result.returncode}: {result.stderr[-2000:]}"
    return result.stdout
