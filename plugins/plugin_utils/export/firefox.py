# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples as JSON for the Firefox Profiler: the bytes that the source counts, as one thread with a weighted sample for
each stack.

Format: the "processed profile" of github.com/firefox-devtools/profiler (src/types/profile.ts) in version 48, which
newer versions of the page upgrade.
"""

from __future__ import annotations

import json
from typing import Any

from ..model.frame import Kind
from ..model.samples import BYTES, Samples

_VERSION = 48
_LIBRARY = 1  # the type of a resource
_CATEGORIES = {
    Kind.NATIVE: 0,
    Kind.INLINED: 0,
    Kind.JIT: 1,
    Kind.JAVA: 1,
    Kind.PYTHON: 1,
    Kind.JS: 1,
    Kind.UNKNOWN: 2,
}
_NO_STACK = "[no stack]"


def render(samples: Samples, name: str, time: float = 0.0) -> str:
    """The JSON; ``time`` is when the dump was written, in seconds since the epoch."""
    return json.dumps(_Writer(samples).document(name, time), separators=(",", ":")) + "\n"


class _Writer:
    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.strings: dict[str, int] = {}
        self.libraries: dict[tuple[str, str], int] = {}
        self.functions: dict[tuple[int, int, int | None], int] = {}
        # (prefix, frame) -> number; a frame is a place, or one more for empty stacks.
        self.stacks: dict[tuple[int | None, int], int] = {}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text.encode("utf-8", "replace").decode("utf-8"), len(self.strings))

    def document(self, name: str, time: float) -> dict[str, Any]:
        frames = self.frames()
        leaves = [self.stack(stack[::-1].tolist()) for stack in self.samples.each_stack()]
        weights = [round(value) for value in self.samples.values[BYTES].tolist()]
        shown = [(stack, weight) for stack, weight in zip(leaves, weights, strict=True) if weight]
        categories = [
            frames["category"][frame] if frame < frames["length"] - 1 else 2 for _prefix, frame in self.stacks
        ]
        thread = {
            "name": name,
            "isMainThread": True,
            "processType": "default",
            "processName": name,
            "processStartupTime": 0,
            "processShutdownTime": None,
            "registerTime": 0,
            "unregisterTime": None,
            "pausedRanges": [],
            "pid": "0",
            "tid": 0,
            "samples": {
                "stack": [stack for stack, _weight in shown],
                "time": list(range(len(shown))),
                "weight": [weight for _stack, weight in shown],
                "weightType": "bytes",
                "length": len(shown),
            },
            "stackTable": {
                "frame": [frame for _prefix, frame in self.stacks],
                "prefix": [prefix for prefix, _frame in self.stacks],
                "category": categories,
                "subcategory": [0] * len(self.stacks),
                "length": len(self.stacks),
            },
            "frameTable": frames,
            "funcTable": self.function_table(),
            "resourceTable": self.resource_table(),
            "nativeSymbols": {"libIndex": [], "address": [], "name": [], "functionSize": [], "length": 0},
            "markers": {
                **{key: [] for key in ("data", "name", "startTime", "endTime", "phase", "category")},
                "length": 0,
            },
            "stringArray": list(self.strings),
        }
        return {
            "meta": {
                "version": 27,
                "preprocessedProfileVersion": _VERSION,
                "product": name,
                "importedFrom": "offheap.profiler",
                "interval": 1,
                "startTime": round(time * 1000),
                "processType": 0,
                "stackwalk": 1,
                "debug": False,
                "symbolicated": True,
                "usesOnlyOneStackType": True,
                "doesNotUseFrameImplementation": True,
                "sourceCodeIsNotOnSearchfox": True,
                "extensions": {"id": [], "name": [], "baseURL": [], "length": 0},
                "categories": [
                    {"name": category, "color": colour, "subcategories": ["Other"]}
                    for category, colour in (("Native", "blue"), ("JIT", "yellow"), ("Other", "grey"))
                ],
                "markerSchema": [],
            },
            "libs": [self.library(path, build_id) for path, build_id in self.libraries],
            "pages": [],
            "threads": [thread],
        }

    def frames(self) -> dict[str, Any]:
        """The table of frames: one for each place, then one for empty stacks."""
        samples = self.samples
        table: dict[str, Any] = {
            key: [] for key in ("address", "inlineDepth", "category", "subcategory", "func", "line", "column")
        }
        for frame_number, at in zip(samples.place_frame.tolist(), samples.place_location.tolist(), strict=True):
            frame, location = samples.frames[frame_number], samples.locations[at]
            resource = -1
            if location.in_file:
                resource = self.libraries.setdefault((location.path, location.build_id), len(self.libraries))
            file = self.string(frame.file) if frame.file else None
            function = (self.string(frame.label), resource, file)
            table["address"].append(location.shown if location.in_file else -1)
            table["category"].append(_CATEGORIES[frame.kind])
            table["func"].append(self.functions.setdefault(function, len(self.functions)))
            table["line"].append(frame.line or None)
            table["inlineDepth"].append(0)
        self._depths(table["inlineDepth"])
        table["address"].append(-1)
        table["category"].append(_CATEGORIES[Kind.UNKNOWN])
        table["func"].append(self.functions.setdefault((self.string(_NO_STACK), -1, None), len(self.functions)))
        table["line"].append(None)
        table["inlineDepth"].append(0)
        size = table["length"] = len(table["func"])
        table.update(subcategory=[0] * size, column=[None] * size, nativeSymbol=[None] * size)
        table.update(innerWindowID=[0] * size, implementation=[None] * size)
        return table

    def _depths(self, depths: list[int]) -> None:
        """Places of one location come innermost first; the outermost has depth 0."""
        locations = self.samples.place_location.tolist()
        for place in range(len(locations) - 2, -1, -1):
            if locations[place] == locations[place + 1]:
                depths[place] = depths[place + 1] + 1

    def stack(self, places: list[int]) -> int:
        first, *others = places or [len(self.samples.place_frame)]
        prefix = self.stacks.setdefault((None, first), len(self.stacks))
        for place in others:
            prefix = self.stacks.setdefault((prefix, place), len(self.stacks))
        return prefix

    def function_table(self) -> dict[str, Any]:
        size = len(self.functions)
        return {
            "name": [name for name, _resource, _file in self.functions],
            "isJS": [False] * size,
            "relevantForJS": [False] * size,
            "resource": [resource for _name, resource, _file in self.functions],
            "fileName": [file for _name, _resource, file in self.functions],
            "lineNumber": [None] * size,
            "columnNumber": [None] * size,
            "length": size,
        }

    def resource_table(self) -> dict[str, Any]:
        size = len(self.libraries)
        return {
            "lib": list(range(size)),
            "name": [self.string(path.rpartition("/")[2]) for path, _build_id in self.libraries],
            "host": [None] * size,
            "type": [_LIBRARY] * size,
            "length": size,
        }

    @staticmethod
    def library(path: str, build_id: str) -> dict[str, Any]:
        name = path.rpartition("/")[2].encode("utf-8", "replace").decode("utf-8")
        full = path.encode("utf-8", "replace").decode("utf-8")
        return {
            "arch": "",
            "name": name,
            "path": full,
            "debugName": name,
            "debugPath": full,
            # Breakpad's form: the first 16 bytes of the build-id as a little-endian GUID, and an age of 0.
            "breakpadId": _breakpad_id(build_id),
            "codeId": build_id or None,
        }


def _breakpad_id(build_id: str) -> str:
    raw = bytes.fromhex(build_id)[:16].ljust(16, b"\0") if len(build_id) % 2 == 0 else bytes(16)
    return (raw[3::-1] + raw[5:3:-1] + raw[7:5:-1] + raw[8:]).hex().upper() + "0"
