# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The libraries that each controller builds to the same bytes, for hosts of other platforms and for pods."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

_SUMS = Path(__file__).parents[3] / "roles" / "jemalloc" / "files" / "cross_checksums.json"
_USUAL_PAGE = 4096


def carried() -> Mapping[str, str]:
    """The SHA-256 of the shared library in each build, by the build's name, which ends in C library, architecture and
    size of pages."""
    sums: dict[str, Any] = json.loads(_SUMS.read_text(encoding="utf-8"))
    return sums


def page_of(sums: Collection[str]) -> int:
    """For which size of pages the jemalloc among files with these SHA-256 was built; 4096 where that is another's."""
    pages = [name.rpartition("-")[2] for name, one in carried().items() if name.startswith("jemalloc-") and one in sums]
    return int(pages[0]) if pages else _USUAL_PAGE
