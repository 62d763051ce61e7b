# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The error of every reader: a file is not what its source writes, or does not hold what is needed."""

from __future__ import annotations

from ..base.errors import ControllerError
from ..base.printable import printable

_SHOWN = 60


class FormatError(ControllerError):
    """A file is not what was expected. The message names the file, the line (from 1) and what was expected."""

    def __init__(self, file: str, line: int, expected: str, found: bytes | None = None) -> None:
        self.file = file
        self.line = line
        self.expected = expected
        shown = ""
        if found is not None:
            text = found[:_SHOWN].decode("ascii", "backslashreplace").encode("unicode_escape").decode("ascii")
            shown = f", found {text!r}" + ("..." if len(found) > _SHOWN else "")
        super().__init__(f"{file}, line {line}: expected {expected}{shown}")


class UnusableError(ControllerError):
    """A file is what its source writes and still cannot be used. The message says why, and what to do."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {printable(why)}")
