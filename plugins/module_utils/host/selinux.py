# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What SELinux lets the domain of a process do with our files, as the kernel itself says.

The question, two contexts and the number of a class, is written to a file of its file system, and the answer read from
there: the permissions of that class, one bit each (security_compute_av(3); libselinux's compute_av.c).

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.host import places, procfs, security_module

_FS = "/sys/fs/selinux"
_PERMISSIVE_DOMAIN = 1
_ANSWER = re.compile(r"([0-9a-f]{1,8}) [0-9a-f]+ [0-9a-f]+ [0-9a-f]+ [0-9]+ ([0-9a-f]+)\Z")
_TYPE = re.compile(r"([\w.-]+:[\w.-]+:)([\w.-]+)(?::.*)?\Z")
_READ = ("open", "read", "getattr")
# What a process under the profiler does with files that are there: their class, and what its domain must be allowed.
_LOOKED_AT = (
    ("/proc/sys/kernel/random/boot_id", "file", _READ),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "file", _READ),
    ("/sys/fs/cgroup", "file", _READ),
)
# What every policy that is made of the reference policy has: the type of a file system on a disk, and of one in memory.
_DISK, _MEMORY = "fs_t", "tmpfs_t"


class _Rules:
    """What a policy must be given, by source, target and class."""

    def __init__(self) -> None:
        self._lacking: dict[tuple[str, str, str], dict[str, None]] = {}

    def want(self, source: str, target: str, kind: str, permissions: Sequence[str]) -> None:
        lacking = _lacking(source, target, kind, permissions)
        if lacking:
            name = "self" if source == target else _type(target)
            self._lacking.setdefault((_type(source), name, kind), {}).update(dict.fromkeys(lacking))

    def lines(self) -> list[str]:
        return [
            f"(allow {source} {target} ({kind} ({' '.join(lacking)})))"
            for (source, target, kind), lacking in self._lacking.items()
        ]


def is_enforcing() -> bool:
    """Whether SELinux is on and denies what its policy does not allow."""
    return _read("enforce") == "1"


def lines(label: str, program: str, libraries: Sequence[str], unit: str) -> list[str]:
    """The rules that a policy lacks, so that the unit's process could have our ``libraries`` preloaded, write dumps
    and answer: each a line of SELinux's Common Intermediate Language (CIL).

    ``label`` is as in procfs.security_label, ``program`` the path of the process's executable. None where SELinux is
    off, does not enforce, or makes an exception for the domain. Of a library that is not there yet nothing is asked.
    """
    domain = _type(label)
    if not domain or not is_enforcing():
        return []
    rules = _Rules()
    spool, sockets = places.spool_of(unit), places.sockets_of(unit)
    paths = [program, spool, sockets, *(path for path, _kind, _permissions in _LOOKED_AT), *filter(None, libraries)]
    for directory in sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents}):
        rules.want(label, _own_context(directory), "dir", ("search",))
    for library in libraries:
        rules.want(label, _own_context(library), "file", (*_READ, "map", "execute"))
    rules.want(label, _own_context(program), "file", ("getattr",))
    rules.want(label, _context(spool), "dir", (*_READ, "search", "write", "add_name", "remove_name"))
    rules.want(label, _made(label, _context(spool), "file"), "file", (*_READ, "create", "write", "rename", "unlink"))
    rules.want(label, _with_type(_context(spool), _DISK), "filesystem", ("getattr",))
    rules.want(label, _made(label, _with_type(_context(spool), _MEMORY), "file"), "file", (*_READ, "write"))
    rules.want(label, _context(sockets), "dir", ("search", "write", "add_name", "remove_name"))
    socket = _made(label, _context(sockets), "sock_file")
    rules.want(label, socket, "sock_file", ("create", "getattr", "setattr", "unlink"))
    for path, kind, permissions in _LOOKED_AT:
        rules.want(label, _own_context(path), kind, permissions)
    rules.want(label, label, "file", _READ)
    rules.want(label, label, "unix_stream_socket", ("create", "bind", "listen", "accept", "read", "write"))
    manager = procfs.security_label(1)
    if _type(manager) != domain:
        rules.want(manager, label, "process", ("noatsecure",))
    return rules.lines()


def _lacking(source: str, target: str, kind: str, permissions: Sequence[str]) -> list[str]:
    number = _read(f"class/{kind}/index")
    if not target or not number.isdigit():
        return []
    answer = _ANSWER.match(_asked("access", f"{source} {target} {number}"))
    if answer is None or int(answer[2], 16) & _PERMISSIVE_DOMAIN:
        return []
    bits = {name: _read(f"class/{kind}/perms/{name}") for name in permissions}
    allowed = int(answer[1], 16)
    return [name for name, bit in bits.items() if bit.isdigit() and not allowed >> (int(bit) - 1) & 1]


def _made(source: str, parent: str, kind: str) -> str:
    """The context of what a process makes in such a directory."""
    return _asked("create", f"{source} {parent} {_read(f'class/{kind}/index')}")


def _with_type(label: str, name: str) -> str:
    return _TYPE.sub(rf"\g<1>{name}:s0", label)


def _type(label: str) -> str:
    found = _TYPE.match(label)
    return found[2] if found else ""


def _context(path: str) -> str:
    """That of the file, or that which it will have from the directory above."""
    while not os.path.lexists(path) and path != "/":
        path = os.path.dirname(path)
    return _own_context(path)


def _own_context(path: str) -> str:
    try:
        return os.getxattr(path, "security.selinux", follow_symlinks=False).rstrip(b"\0").decode("ascii", "replace")
    except OSError:
        return ""


def _read(name: str) -> str:
    try:
        with open(f"{_FS}/{name}", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _asked(file: str, question: str) -> str:
    answer = security_module.asked(f"{_FS}/{file}", question.encode("ascii", "replace"))
    return answer.decode("ascii", "replace").strip("\0\n")
