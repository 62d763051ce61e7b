# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples as JSON for programs: all numbers and frames, with errors. Schema: docs/profile.schema.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..model.samples import Samples
from ..model.sampling import CONFIDENCE, Scheme

FORMAT = 1


def render(samples: Samples, facts: Mapping[str, Any]) -> str:
    """The JSON; ``facts`` are texts, numbers or null by name: host, unit, time and whatever else is known."""
    return json.dumps(document(samples, facts), separators=(",", ":")) + "\n"


def document(samples: Samples, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same as plain data."""
    known = samples.sampling.scheme is not Scheme.UNKNOWN
    errors = (CONFIDENCE * samples.variance**0.5).T.tolist() if known else [[None] * 4] * len(samples)
    threads: list[list[Any]] = [[] for _stack in range(len(samples))]
    columns = (samples.thread_stack.tolist(), samples.thread_uid.tolist(), samples.thread_values.T.tolist())
    for stack, uid, values in zip(*columns, strict=True):
        threads[stack].append({"thread": uid, "values": values})
    return {
        "format": FORMAT,
        "generator": "offheap.profiler",
        "facts": dict(facts),
        "sample_interval": samples.sampling.interval,
        "measure": samples.measure.value,
        "values": ["inuse_objects", "inuse_space", "alloc_objects", "alloc_space"],
        "totals": samples.values.sum(axis=1).tolist(),
        "images": _images(samples),
        "frames": [
            {
                "function": frame.function,
                "label": frame.label,
                "kind": frame.kind.value,
                "module": frame.module,
                "file": frame.file,
                "line": frame.line,
            }
            for frame in samples.frames
        ],
        "places": _places(samples),
        "threads": [{"thread": uid, "name": name} for uid, name in sorted(samples.thread_names.items())],
        "stacks": [
            {"places": stack.tolist(), "values": values, "errors": error, "threads": by_thread}
            for stack, values, error, by_thread in zip(
                samples.each_stack(), samples.values.T.tolist(), errors, threads, strict=True
            )
        ],
    }


def _images(samples: Samples) -> list[dict[str, Any]]:
    known = dict.fromkeys((location.path, location.build_id) for location in samples.locations if location.in_file)
    return [{"path": _text(path), "build_id": build_id or None} for path, build_id in known]


def _places(samples: Samples) -> list[dict[str, Any]]:
    images: dict[tuple[str, str], int] = {}
    for location in samples.locations:
        if location.in_file:
            images.setdefault((location.path, location.build_id), len(images))
    found = []
    for frame, at in zip(samples.place_frame.tolist(), samples.place_location.tolist(), strict=True):
        location = samples.locations[at]
        image = images.get((location.path, location.build_id)) if location.in_file else None
        found.append({"frame": frame, "image": image, "offset": location.shown})
    return found


def _text(path: str) -> str:
    return path.encode("utf-8", "replace").decode("utf-8")
