# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the role jemalloc asks finished_build for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible_collections.offheap.profiler.plugins.action import finished_build
from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce

HOST: dict[str, Any] = {
    "key": "glibc-x86_64-4096",
    "libc_version": [2, 36],
    "page_size": 4096,
    "python": sys.executable,
}


def options(part: str, directory: Path, **more: Any) -> dict[str, Any]:
    """The task's options, with a cache in the directory and the build's place below it."""
    name = (reproduce.library_stem() if part == "library" else reproduce.agent_stem()).partition("-")[2]
    return {
        "path": str(directory / "opt" / part / name),
        "part": part,
        "method": "cross",
        "wanting": ["app1"],
        "platform": HOST,
        "build_host": "",
        "build_host_platform": "",
        "cache": str(directory / "cache"),
        "archive": "",
        "archive_checksum": "",
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
    return finished_build.Build(options(part, directory, **more))
