# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What an action's options mean, whoever hands them in."""

from __future__ import annotations

from pathlib import Path


def from_here(path: str) -> Path:
    """The path, which begins at the directory that ``ansible-playbook`` was started in."""
    return Path.cwd() / Path(path).expanduser()


def from_here_if_any(path: str | None) -> Path | None:
    """The same of an option that may be left out."""
    return from_here(path) if path else None
