# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The looks at a fleet on the controller: DIRECTORY/HOST/MILLISECONDS.json, one file for each look at a host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..base import output_file
from ..base.byte_size import as_text
from ..base.directory_name import directory_name
from .look import Sample, SampleError, parse

# A look at a host with many units takes some 100 KiB.
_MOST_BYTES = 64 << 20


def keep(directory: Path, host: str, samples: Any) -> Path:
    """Write one look at a host. Returns the file.

    Raises SampleError if these are not samples.
    Raises ControllerError for a host name that no directory can have.
    Raises OutputError if the file cannot be written.
    """
    if not isinstance(samples, list) or not samples:
        raise SampleError("there is no sample to keep")
    taken = max(parse(sample).time for sample in samples)
    path = directory / directory_name(host) / f"{round(taken * 1000)}.json"
    content = json.dumps({"host": host, "samples": samples}, indent=1)
    output_file.write(path, content.encode("utf-8", "replace") + b"\n", force=True)
    return path


def read(directory: Path, warn: Callable[[str], None]) -> Iterator[tuple[str, Sample]]:
    """All looks, with the host's name. Leaves out what it cannot read, and calls ``warn``."""
    for path in sorted(directory.glob("*/*.json")):
        try:
            yield from _read(path)
        except (SampleError, OSError, ValueError, RecursionError) as error:
            warn(f"{path} was left out: {error}")


def _read(path: Path) -> list[tuple[str, Sample]]:
    file = path.stat()
    if file.st_size > _MOST_BYTES:
        raise SampleError(f"it is larger than {as_text(_MOST_BYTES)}")
    data = json.loads(path.read_bytes())
    if not isinstance(data, dict) or not isinstance(data.get("host"), str) or not isinstance(data.get("samples"), list):
        raise SampleError("it is not what native_memory_info writes")
    return [(data["host"], parse(item, file.st_mtime)) for item in data["samples"]]
