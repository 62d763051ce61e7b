# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Programs that are watched step by step: after each step a dump, and time is what we say it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf
from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, located, named
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.symbolizer import Symbolizer
from ansible_collections.offheap.profiler.tests.agent.service import Service

STEPS, STEP_SECONDS, DAY = 30, 300.0, 86400.0
# Steps before the first dump, in which a program warms up.
FIRST = 2
START = 1761234000.0
UNIT = "truth.service"


@dataclass(frozen=True)
class Program:
    """A program of the suite; ``culprit`` is a function in the path of its leak, empty where it has none."""

    name: str
    culprit: str
    command: Callable[[], list[str]]
    environment: dict[str, str]


def observe(service: Service) -> list[bytes]:
    """The dumps of a program after each of its steps."""
    process = service.process
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"ready\n", service.stderr()
    service.wait_until_active()
    found = []
    with service.connected() as connection:
        for step in range(FIRST + STEPS):
            process.stdin.write(b"step\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n", service.stderr()
            if step >= FIRST:
                dump = Path(connection.dump(str(service.spool)).path)
                found.append(dump.read_bytes())
                dump.unlink()
    service.kill()
    return found


def archived(root: Path, scratch: Path, dumps: list[bytes]) -> Archive:
    """An archive of these dumps, with the images that they need."""
    archive = Archive.create(root)
    images: dict[str, dict[str, Any]] = {}
    for number, content in enumerate(dumps):
        for mapping in heap_v2.parse(content, "dump").mappings:
            if mapping.executable and mapping.path.startswith("/") and mapping.path not in images:
                images[mapping.path] = _image(archive, Path(mapping.path))
        (scratch / "dump").write_bytes(content)
        archive.add_capture(CaptureFacts.from_json(_facts(content, number, list(images.values()))), scratch / "dump")
    return archive


def _image(archive: Archive, path: Path) -> dict[str, Any]:
    build_id = elf.read(path).build_id
    if build_id is None:
        return {"path": str(path), "build_id": None, "size": None, "reason": "it has none"}
    archive.add_image(build_id, path.name, path)
    return {"path": str(path), "build_id": build_id, "size": path.stat().st_size}


def _facts(content: bytes, number: int, images: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": 1,
        "host": "here",
        "unit": UNIT,
        "dump": {
            "name": f"jeprof.12.{number}.i{number}.heap",
            "size": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "time": START + STEP_SECONDS * number,
        },
        "process": {
            "pid": 12,
            "key": "12-1a2b3c4d",
            "boot_id": None,
            "start_time": None,
            "exe": None,
            "cmdline": None,
        },
        "images": list(images),
    }


def true_rate(archive: Archive, dumps: list[bytes], culprit: str) -> float:
    """Bytes per day that a culprit leaks, from dumps in which every allocation is recorded."""
    symbolizer = Symbolizer(archive.image, archive.symcaches)
    build_ids = archive.captures()[-1].facts.build_ids
    live: list[float] = []
    for content in (dumps[0], dumps[-1]):
        dump = heap_v2.parse(content, "dump")
        assert dump.sampling.interval == 1, "all are recorded"
        read = named(located(dump, build_ids), symbolizer.frames)
        live.append(
            sum(
                size
                for frames, size in zip(read.each_stack_of_frames(), read.values[BYTES].tolist(), strict=True)
                if any(culprit in frame.label for frame in frames)
            )
        )
    return (live[1] - live[0]) / (STEP_SECONDS * (len(dumps) - 1)) * DAY
