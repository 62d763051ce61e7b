# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the role jemalloc asks finished_build for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.offheap.profiler.plugins.action import finished_build
from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce

HOST: dict[str, Any] = {
    "key": "glibc-x86_64-4096",
    "libc": "glibc",
    "libc_version": [2, 36],
    "page_size": 4096,
    "python": sys.executable,
}


def place(part: str, directory: Path) -> str:
    """Where the build that the collection carries would be, below the directory."""
    stem = reproduce.library_stem() if part == "library" else reproduce.agent_stem()
    return str(directory / "opt" / part / stem.partition("-")[2])


def options(part: str, directory: Path, platform: Mapping[str, Any] = HOST, **more: Any) -> dict[str, Any]:
    """The task's options, with a cache in the directory. Two hosts of the platform lack the part."""
    places = {part: place(part, directory)} | more.pop("places", {})
    found = {"platform": platform, "missing": list(places.values())}
    return {
        "places": places,
        "method": "cross",
        "hosts": {"app1": found, "app2": found},
        "build_host": "",
        "cache": str(directory / "cache"),
        "archive": "",
        "archive_checksums": {},
        "files": str(reproduce.ROLE / "files"),
        "cross": reproduce.VARIABLES["_jemalloc_cross"],
        "version": reproduce.VERSION,
        "source": "/nowhere/jemalloc.tar.bz2",
        "checksum": reproduce.RELEASE,
        "patches": {path.name: reproduce.sha256(path) for path in reproduce.patches()},
        "configure_options": reproduce.DEFAULTS["jemalloc_configure_options"],
        "cflags": reproduce.DEFAULTS["jemalloc_cflags"],
        **more,
    }


def build(part: str, directory: Path, **more: Any) -> finished_build.Build:
    """The same as the action takes it."""
    return finished_build.Build(options(part, directory, **more), part, "app1")
