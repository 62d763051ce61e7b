# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which process is at the other end of a connection to this host itself.

Format: the kernel's Documentation/networking/proc_net_tcp.rst. A connection that nobody has accepted has inode 0.

This module is private to the collection.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from typing import Iterable, Iterator

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs

_PEER = struct.Struct("3i")


def accepted(connection: socket.socket) -> int:
    """The inode of the socket at the other end of our TCP connection to this host, 0 while nobody has it."""
    ends = {
        (_in_hex(ours, wide), _in_hex(theirs, wide)): name
        for name, wide in (("tcp", False), ("tcp6", True))
        for theirs, ours in [(connection.getsockname(), connection.getpeername())]
        if wide or connection.family == socket.AF_INET
    }
    for (local, remote), name in ends.items():
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/net/{name}", encoding="ascii") as lines:
            for line in lines:
                fields = line.split(None, 10)
                if fields[1:3] == [local, remote]:
                    return int(fields[9])
    return 0


def _in_hex(end: tuple[str, int], wide: bool) -> str:
    """An address and port as the kernel writes them; IPv4 addresses of ``wide`` sockets are mapped into IPv6."""
    address = ipaddress.ip_address(end[0])
    packed = address.packed
    if wide and address.version == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"


def holder(inode: int, pids: Iterable[int]) -> int | None:
    """The first of these processes that has the socket open."""
    wanted = f"socket:[{inode}]"
    for pid in pids:
        directory = f"{procfs.directory(pid)}/fd"
        try:
            for name in os.listdir(directory):
                with contextlib.suppress(OSError):
                    if os.readlink(f"{directory}/{name}") == wanted:
                        return pid
        except OSError:
            continue  # it has ended
    return None


def unix() -> Iterator[tuple[bytes, int, bytes]]:
    """The Unix sockets that have names: flags, inode and name, ``@`` for the NUL of an abstract one (proc(5))."""
    with contextlib.suppress(OSError), open("/proc/self/net/unix", "rb") as lines:
        for line in lines:
            *_other, flags, _type, _state, inode, name = [*line.split(None, 7), b""][:8]
            if inode.isdigit() and name:
                yield flags, int(inode), name.strip()


def listener(connection: socket.socket) -> tuple[int, int]:
    """The pid and uid of the process that listens at the other end of a connection to a Unix socket (unix(7),
    SO_PEERCRED)."""
    pid, uid, _gid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid), int(uid)
