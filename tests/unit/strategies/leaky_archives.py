# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Archives with captures of processes that leak, or do not, through this machine's own libz."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import zstandard

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage
from ansible_collections.offheap.profiler.tests.unit.strategies.heap_dumps import (
    DescribedDump,
    DescribedMapping,
    DescribedStack,
)

BASE = 0x7F0000000000
JIT = 0x7E0000000000
INTERVAL = 1 << 19
START = 1761234000.0


@cache
def libz() -> Path:
    return next(path for path in sorted(Path("/usr/lib").glob("*/libz.so.1")) if path.exists()).resolve()


@cache
def libz_sum() -> str:
    return hashlib.sha256(libz().read_bytes()).hexdigest()


@cache
def image() -> ElfImage:
    return ElfImage(libz())


@cache
def inside(function: bytes) -> int:
    """An address inside a function, where the file is mapped from its first byte at BASE."""
    found = image()
    table = found.symbols()
    return (
        BASE
        + next(
            offset
            for offset in range(0, found.path.stat().st_size, 8)
            if table.lookup(found.virtual_address(offset) or 0) == function
        )
        + 5
    )


def dump_text(leaked: int, steady: int) -> bytes:
    """A dump with so many sampled objects of 4 KiB (each stands for about 512 KiB) on two paths."""
    paths = {"inflate": leaked, "deflate": steady}
    stacks = [
        DescribedStack([inside(name.encode()), JIT + 64], (count, 4096 * count, 0, 0), [])
        for name, count in paths.items()
    ]
    mappings = [
        DescribedMapping(JIT, 1 << 16, "rwxp", 0, "", False),
        DescribedMapping(BASE, 1 << 20, "r-xp", 0, str(libz()), False),
    ]
    return DescribedDump(INTERVAL, stacks=stacks, mappings=mappings).text()


def facts(
    content: bytes, host: str, sequence: int, time: float, pid: int = 12, unit: str = "frontend.service"
) -> CaptureFacts:
    build_id = image().build_id
    written = {
        "format": 2,
        "source": "jemalloc",
        "measure": "live",
        "sampling": {"scheme": "poisson", "interval": INTERVAL},
        "host": host,
        "unit": unit,
        "dump": {
            "name": f"jeprof.{pid}.{sequence}.i{sequence}.heap",
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "time": time,
        },
        "process": {
            "pid": pid,
            "key": f"{pid}-1a2b3c4d",
            "boot_id": None,
            "start_time": None,
            "exe": "/usr/bin/java",
            "cmdline": None,
        },
        "images": [{"path": str(libz()), "build_id": build_id, "size": libz().stat().st_size, "sha256": libz_sum()}],
    }
    return CaptureFacts.from_json(written)


def add(archive: Archive, scratch: Path, content: bytes, **of: Any) -> Path:
    """Bring a dump into the archive; the directory of the capture."""
    scratch.mkdir(exist_ok=True)
    (scratch / "dump").write_bytes(content)
    return archive.add_capture(facts(content, **of), scratch / "dump")[0].path


def fill(root: Path, scratch: Path, dumps: int = 12, step: float = 300.0) -> Archive:
    """app1 leaks 2.5 MiB in five minutes, app2 does not."""
    archive = Archive.create(root)
    build_id = image().build_id
    assert build_id
    archive.add_image(build_id, libz().name, libz())
    for number in range(dumps):
        for host, leaked in (("app1", 10 + 5 * number), ("app2", 21)):
            add(
                archive,
                scratch,
                dump_text(leaked, 30 + number % 2),
                host=host,
                sequence=number,
                time=START + step * number,
            )
    return archive


def dump_of(capture: Capture) -> bytes:
    """What jemalloc wrote."""
    content: bytes = zstandard.decompress(capture.dump.read_bytes())
    return content
