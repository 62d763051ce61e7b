# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The files that the house rules cover: tracked and addable ones."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def kept() -> tuple[Path, ...]:
    """Paths relative to the root, links and binary files included."""
    output = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    paths = sorted(Path(name.decode()) for name in output.split(b"\0") if name)
    return tuple(path for path in paths if (ROOT / path).exists() or (ROOT / path).is_symlink())


def text_of(path: Path) -> str | None:
    """Text of a regular file, None for anything else."""
    full = ROOT / path
    if full.is_symlink() or not full.is_file():
        return None
    data = full.read_bytes()
    if b"\0" in data[:8192]:
        return None
    return data.decode("utf-8", "replace")
