# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A library lent to a process in memory (memfd_create(2)), where it may map code from no file of ours (NoExecPaths=).

The process makes it, and the content is written from outside. Whoever runs in the process may have put another file in
its place meanwhile, which must not be written to: only what lies in the kernel's own memory is.

This module is private to the collection.
"""

from __future__ import annotations

import os
import stat

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.running_trace import TraceError

#: what the process calls it, and as what its mappings are seen
NAME = b"liboffheap.so"
MAPPED = "/memfd:liboffheap.so"
CLOSE_ON_EXEC, MAY_EXECUTE = 1, 0x10  # the second since Linux 6.3


def copies(pid: int) -> int:
    """How many the process has mapped. They stay, and each has to be opened by another path."""
    return len({one.inode for one in procfs.mappings(pid) if one.path == MAPPED})


def path(number: int, before: int) -> str:
    """Where the process finds its descriptor: the loader takes a path that it has opened ``before`` for that."""
    return f"/proc/self/fd/{'./' * before}{number}"


def fill(pid: int, number: int, content: bytes) -> None:
    """Write the library to the process's descriptor. Raises TraceError."""
    ours = os.memfd_create("offheap")
    try:
        place = os.open(f"{procfs.directory(pid)}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
    except OSError as exc:
        raise TraceError(f"descriptor {number} of process {pid} cannot be opened: {exc.strerror}") from exc
    else:
        try:
            found = os.fstat(place)
            if not stat.S_ISREG(found.st_mode) or found.st_dev != os.fstat(ours).st_dev:
                raise TraceError(f"process {pid} has put another file in the place of the library")
            with open(f"/proc/self/fd/{place}", "wb") as file:
                file.write(content)
        except OSError as exc:
            raise TraceError(f"the library cannot be lent to process {pid} in memory: {exc.strerror}") from exc
        finally:
            os.close(place)
    finally:
        os.close(ours)
