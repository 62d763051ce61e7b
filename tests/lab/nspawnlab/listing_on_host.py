# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runs on a host, which may have Python 3.8: prints one line per path.

A line has type, mode, uid, gid, size, sha256 (or a link's target, or "-") and path, without times. Control characters
and spaces in names are escaped, so that each line is one record, whatever the file's name.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator

TYPES = {
    stat.S_IFREG: "f",
    stat.S_IFDIR: "d",
    stat.S_IFLNK: "l",
    stat.S_IFSOCK: "s",
    stat.S_IFIFO: "p",
    stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
}


def main(roots: list[str], left_out: list[str]) -> None:
    """Print the listing of ``roots``."""
    skip = re.compile("|".join(fnmatch.translate(pattern) for pattern in left_out))
    for root in sorted(roots):
        for path in walk(root, skip):
            sys.stdout.buffer.write(line(path) + b"\n")


def walk(path: str, skip: re.Pattern[str]) -> Iterator[str]:
    """Yield ``path`` and everything below it in order, except what ``skip`` matches; links are not followed."""
    if skip.match(path):
        return
    yield path
    if os.path.isdir(path) and not os.path.islink(path):
        for name in sorted(os.listdir(path)):
            yield from walk(os.path.join(path, name), skip)


def line(path: str) -> bytes:
    """The record of one path, or a placeholder if it vanished meanwhile."""
    try:
        status = os.lstat(path)
        kind = TYPES[stat.S_IFMT(status.st_mode)]
        size, content = (status.st_size, "-") if kind in "fl" else (0, "-")
        if kind == "f":
            content = checksum(path)
        elif kind == "l":
            content = escape(os.readlink(path))
    except FileNotFoundError:
        return f"- - - - - - {escape(path)}".encode()
    mode = stat.S_IMODE(status.st_mode)
    return f"{kind} {mode:04o} {status.st_uid} {status.st_gid} {size} {content} {escape(path)}".encode()


def checksum(path: str) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while True:
            block = stream.read(1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)


def escape(text: str) -> str:
    """``text`` with white space and control characters escaped."""
    return "".join(c if c > " " and c != "\\" and c.isprintable() else ascii_escape(c) for c in text)


def ascii_escape(character: str) -> str:
    """A backslash escape that cannot be part of a plain name."""
    return f"\\u{{{ord(character):x}}}"
