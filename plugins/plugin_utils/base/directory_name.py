# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Any name as the name of a directory, reversibly; and what lies in a directory of such names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from .errors import ControllerError

_MAX_NAME = 240


def directory_name(text: str) -> str:
    """A host's or unit's name with everything but [A-Za-z0-9._-], and a leading dot, percent-encoded as UTF-8.

    Raises ControllerError for a text that is empty or too long.
    """
    encoded = quote(text, safe="", errors="replace").replace("~", "%7E")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if not encoded or len(encoded) > _MAX_NAME:
        raise ControllerError(f"{text[:100]!r} cannot be the name of a directory: it is empty or too long")
    return encoded


def below(directory: Path, warn: Callable[[str], None] | None = None) -> list[Path]:
    """What lies in a directory, if there is one, but for hidden names. One that this user may not read is not empty:
    calls ``warn``, or raises ControllerError."""
    try:
        return [directory / name for name in os.listdir(directory) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        told = f"cannot read {directory}: {error.strerror}"
        if warn is None:
            raise ControllerError(told) from error
        warn(told)
        return []
