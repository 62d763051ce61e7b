# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A library that a process is to open: the newest that is installed, and that nobody but root could have replaced.

This module is private to the collection.
"""

from __future__ import annotations

import glob
import os

from ansible_collections.offheap.profiler.plugins.module_utils.host import trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError


def newest(pattern: str, missing: str) -> str:
    """The path of the newest. Raises TraceError with what to say if there is none."""
    found = glob.glob(pattern)
    if not found:
        raise TraceError(missing)
    return max(found, key=os.path.getmtime)


def check(library: str) -> None:
    """Raises TraceError unless only root may write to it, and to what is above it."""
    try:
        fault = trusted_path.fault(library)
    except OSError as exc:
        raise TraceError(f"cannot use the library {library}: {exc.strerror}") from exc
    if fault:
        raise TraceError(f"the library {library} could be replaced: {fault}. Only root may write there")
