# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a file of requirements asks for, and what its lock holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


@dataclass(frozen=True)
class Locked:
    """One line of a lock: a requirement with one version, and the hashes of the files it may be installed from."""

    requirement: Requirement
    hashes: frozenset[str]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        """Raises ValueError if the line does not say one."""
        (only,) = self.requirement.specifier
        if only.operator != "==" or "*" in only.version:
            raise ValueError(f"{self.requirement} is not one version")
        return only.version


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.partition(" #")[0].strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def asked(path: Path) -> list[Requirement]:
    """The requirements of a file, and of those that it includes."""
    found = []
    for line in _lines(path):
        if line.startswith("-r "):
            found += asked(path.parent / line[3:].strip())
        else:
            found.append(Requirement(line))
    return found


def locked(path: Path) -> list[Locked]:
    """The lines of a lock."""
    return [Locked(Requirement(_HASH.sub("", line).strip()), frozenset(_HASH.findall(line))) for line in _lines(path)]
