# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Make the work tree importable under the name that Ansible gives it, and set what all tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis

ROOT = Path(__file__).resolve().parent.parent
COLLECTIONS = ROOT / ".cache" / "collections"


def _link_collection() -> None:
    link = COLLECTIONS / "ansible_collections" / "offheap" / "profiler"
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.resolve() == ROOT:
        return
    if link.is_symlink():
        link.unlink()
    try:
        link.symlink_to(ROOT, target_is_directory=True)
    except FileExistsError:  # another pytest worker was first
        if link.resolve() != ROOT:
            raise


_link_collection()
if str(COLLECTIONS) not in sys.path:
    sys.path.insert(0, str(COLLECTIONS))

# How long an example takes says something about the machine, which may be busy, and nothing about the code.
hypothesis.settings.register_profile(
    "offheap", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("offheap")
