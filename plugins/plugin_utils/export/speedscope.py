# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples as JSON for speedscope: one profile for each of the four numbers, on one table of frames.

Format: https://www.speedscope.app/file-format-schema.json, profiles of type "sampled".
"""

from __future__ import annotations

import json
from typing import Any

from ..model.samples import BYTES, Samples
from ..views.table import Measure

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(samples: Samples, name: str) -> str:
    """The JSON. Numbers that the dump lacks (the last two, without prof_accum) get no profile."""
    stacks = [samples.place_frame[stack][::-1].tolist() for stack in samples.each_stack()]
    frames: list[dict[str, Any]] = []
    for frame in samples.frames:
        entry: dict[str, Any] = {"name": frame.label}
        if frame.file or frame.module:
            entry["file"] = frame.file or frame.module
        if frame.line:
            entry["line"] = frame.line
        frames.append(entry)
    if [] in stacks:
        stacks = [stack or [len(frames)] for stack in stacks]
        frames.append({"name": "[no stack]"})
    profiles = []
    for kind in Measure:
        row = kind.row
        values = [(stack, round(value)) for stack, value in zip(stacks, samples.values[row].tolist(), strict=True)]
        # What shrank against a base has no width to draw.
        values = [(stack, value) for stack, value in values if value > 0]
        if values or row == BYTES:
            profiles.append(
                {
                    "type": "sampled",
                    "name": f"{name} {kind.named(samples.measure)}",
                    "unit": "bytes" if kind.unit == "bytes" else "none",
                    "startValue": 0,
                    "endValue": sum(value for _stack, value in values),
                    "samples": [stack for stack, _value in values],
                    "weights": [value for _stack, value in values],
                }
            )
    document = {
        "$schema": SCHEMA,
        "name": name,
        "exporter": "offheap.profiler",
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"
