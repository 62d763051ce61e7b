# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The files of an archive's images: what their names say, and whether they are what they should be.

Whoever links a file chooses its build-id, so a host may have another file with the build-id of everybody's libc. Hence
files of one build-id lie side by side, each with its SHA-256 in its name: ``libc.so.6@<sum>``. Files without one came
from versions before 1.0.0, which had one image for each build-id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from ...module_utils.formats import elf_headers
from ..base.directory_name import directory_name

# directory_name writes no "@", so no file of an older version ends like this.
_SUM = re.compile(r"@([0-9a-f]{64})\Z")
# Of what it was called on its host; with the sum, a file's name may have 255 bytes.
_LONGEST = 180


def name_of(basename: str, sha256: str) -> str:
    """The name of an image's file. Raises ControllerError for a basename that cannot be part of one."""
    shown = basename[:_LONGEST]
    while len(quote(shown, safe="", errors="replace")) > _LONGEST:
        shown = shown[:-1]
    return f"{directory_name(shown)}@{sha256}"


def said(name: str) -> str:
    """The sum that a file's name says, empty if none."""
    found = _SUM.search(name)
    return found[1] if found else ""


def as_written(name: str) -> str:
    """The name of a file from elsewhere as it would be written here. Raises ControllerError."""
    sha256 = said(name)
    return name_of(unquote(_SUM.sub("", name)), sha256) if sha256 else directory_name(unquote(name))


def chosen(names: Iterable[str], sha256: str) -> str | None:
    """Of the files of one build-id, the image with this sum.

    Captures of older versions say no sum. They get the file that has none, or else the only one: not any of several.
    """
    there = {name: said(name) for name in sorted(names) if not name.startswith(".")}
    sums = set(there.values())
    wanted = sha256 if sha256 or "" in sums or len(sums) != 1 else sums.pop()
    return next((name for name, sum_there in there.items() if sum_there == wanted), None)


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file, in hex. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_image(file: Path, build_id: str, sha256: str) -> bool:
    """Whether a file is of this build and has this sum (none said: any). Raises OSError."""
    try:
        its_own = elf_headers.read(file).build_id()
    except elf_headers.ElfError:
        return False
    return its_own == build_id and sha256 in ("", sha256_of(file))
