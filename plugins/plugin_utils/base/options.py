# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Paths in an action's options."""

from __future__ import annotations

from pathlib import Path


def from_here(path: str) -> Path:
    """A path relative to the directory in which ``ansible-playbook`` was started."""
    return Path.cwd() / Path(path).expanduser()


def from_here_if_any(path: str | None) -> Path | None:
    """The same for an optional path."""
    return from_here(path) if path else None
