# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An action's options: paths, and types whose errors say what would do."""

from __future__ import annotations

import os
import re
from pathlib import Path

from . import byte_size


def user_path(path: str | Path) -> Path:
    """A path with ``~`` replaced as by a shell: where nobody has that name, it stays."""
    return Path(os.path.expanduser(path))


def from_here(path: str) -> Path:
    """A path relative to the directory in which ``ansible-playbook`` was started."""
    return Path.cwd() / user_path(path)


def from_here_if_any(path: str | None) -> Path | None:
    """The same for an optional path."""
    return from_here(path) if path else None


def user_cache(name: str) -> Path:
    """A directory, which may not exist, in this user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "offheap" / name


def size(value: int | str) -> int:
    """Bytes, for an argument's ``type``. Raises ValueError, which is what Ansible expects."""
    try:
        return byte_size.parse(value)
    except byte_size.ByteSizeError as error:
        raise ValueError(str(error)) from error


def whole_number(value: int | str) -> int:
    """The same for a whole number of anything."""
    if isinstance(value, bool) or not re.fullmatch(r"\s*-?\d{1,18}\s*", str(value)):
        raise ValueError(f"{value!r} is not a whole number")
    return int(value)
