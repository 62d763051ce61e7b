# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One at a time changes the units of a host: whoever comes second waits, and can say for whom.

A run goes on here after its controller was interrupted, to see what it has begun to its end. A rollback in the middle
of that would restart the same unit, and each would take the other's restart for a crash.

The lock is a name of an abstract Unix socket (unix(7)): it leaves nothing on the disk, ends with its process, and the
kernel says who has it. Any user may take such a name, so only one that a process of root's has open counts.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import time
from typing import Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, sockets

_POLL_SECONDS = 0.25
# Looks that find no process of root's with the name, after which it is another user's.
_LOOKS = 4
_PLAIN = re.compile(r"[\w.:%-]+")


class SomebodyAtWork(OffheapError):
    """Another run changes units of this host. The message says which, and what to do."""


@contextlib.contextmanager
def alone(seconds: float) -> Iterator[None]:
    """Nobody else of ours changes units of this host meanwhile. Waits; raises SomebodyAtWork after so many seconds."""
    name = name_of_the_lock()
    deadline = time.monotonic() + seconds
    pid = looks = 0
    with socket.socket(socket.AF_UNIX) as ours:
        while not _take(ours, name):
            if not os.path.exists(f"/proc/{pid}"):
                pid = _holder(name)
            looks = 0 if pid else looks + 1
            if looks == _LOOKS:
                break  # another user's name keeps nobody from working
            if pid and time.monotonic() >= deadline:
                raise SomebodyAtWork(
                    f"another run is at work on this host{_described(pid)}. Nothing was changed by this one. Run it"
                    " again when the other has ended"
                )
            time.sleep(_POLL_SECONDS)
        yield


def name_of_the_lock() -> str:
    """One for each place of drop-ins."""
    return "\0offheap-" + hashlib.sha256(places.PERSISTENT.encode()).hexdigest()[:16]


def _take(ours: socket.socket, name: str) -> bool:
    try:
        ours.bind(name)
    except OSError:
        return False  # EADDRINUSE
    ours.listen(128)
    return True


def _holder(name: str) -> int:
    """The process of root's that has the name, 0 if none has it. Nobody is asked, who need not answer."""
    shown = b"@" + os.fsencode(name[1:])
    roots = list(filter(_is_roots, procfs.pids()))
    holders = (sockets.holder(inode, roots) for _flags, inode, own in sockets.unix() if own == shown)
    return next(filter(None, holders), 0)


def _is_roots(pid: int) -> bool:
    try:
        return procfs.status(pid).get("Uid", "").split()[1:2] == ["0"]
    except procfs.ProcfsError:
        return False  # it has ended


def _described(pid: int) -> str:
    """Its process and, as far as can be seen, since when and for whom it works."""
    if not pid:
        return ""
    said = [f"process {pid}"]
    with contextlib.suppress(procfs.ProcfsError, ValueError):
        said.append(f"since {time.strftime('%H:%M:%S', time.gmtime(procfs.start_time(pid)))} UTC")
        found: dict[str, str] = {}
        while pid > 1 and "SSH_CONNECTION" not in found:  # sudo takes the variable from what it runs
            found = {**procfs.environ(pid), **found}
            pid = int(procfs.status(pid)["PPid"])
        for words, name in (("of the user", "SUDO_USER"), ("connected from", "SSH_CONNECTION")):
            value = found.get(name, "").partition(" ")[0]
            said += [f"{words} {value}"] * (_PLAIN.fullmatch(value) is not None)
    return f" ({', '.join(said)})"
