# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""speedscope against its published schema (fixtures/, from its npm package, MIT), ours against docs/, and Firefox."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import document, firefox, speedscope
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES
from ansible_collections.offheap.profiler.tests.unit.strategies.samples import BUILD_ID, DUMP, samples_of

ROOT = Path(__file__).resolve().parents[5]
EMPTY_STACK = DUMP.replace(b"@ 0x401011 0x401041 0x900001", b"@")


@pytest.mark.parametrize("data", [DUMP, EMPTY_STACK])
def test_speedscopes_own_schema_holds(data: bytes) -> None:
    samples = samples_of(data)
    written = json.loads(speedscope.render(samples, "x.heap"))
    schema = json.loads((Path(__file__).parent / "fixtures" / "speedscope-file-format-schema.json").read_text())
    jsonschema.validate(written, schema)
    assert [profile["name"] for profile in written["profiles"]] == [
        "x.heap inuse_space",
        "x.heap inuse_objects",
        "x.heap alloc_space",
        "x.heap alloc_objects",
    ]
    for profile in written["profiles"]:
        assert profile["endValue"] == sum(profile["weights"]) and len(profile["samples"]) == len(profile["weights"])
    space = written["profiles"][0]
    assert space["endValue"] == pytest.approx(samples.total(BYTES), abs=2)
    names = [[written["shared"]["frames"][index]["name"] for index in stack] for stack in space["samples"]]
    assert ["libz.so.1+0x1030", "fill", "grow", "allocate;it"] in names


@pytest.mark.parametrize("data", [DUMP, EMPTY_STACK])
def test_our_schema_holds(data: bytes) -> None:
    samples = samples_of(data)
    written = json.loads(document.render(samples, {"host": "app1", "time": 1.5, "unit": None}))
    jsonschema.validate(written, json.loads((ROOT / "docs" / "profile.schema.json").read_text()))
    assert written["totals"] == pytest.approx([samples.total(row) for row in range(4)])
    assert written["images"][0] == {"path": "/srv/app", "build_id": BUILD_ID}
    labels = [
        [written["frames"][written["places"][place]["frame"]]["label"] for place in stack["places"]]
        for stack in written["stacks"]
    ]
    assert labels[0] == ["allocate;it", "grow", "fill", "libz.so.1+0x1030"]
    assert [part["thread"] for part in written["stacks"][0]["threads"]] == [0, 1]
    assert all(error > 0 for error in written["stacks"][0]["errors"])


@pytest.mark.parametrize("data", [DUMP, EMPTY_STACK])
def test_firefox_tables_are_whole_and_give_the_stacks_back(data: bytes) -> None:
    samples = samples_of(data)
    written = json.loads(firefox.render(samples, "app", 1.5))
    (thread,) = written["threads"]
    for name in ("samples", "stackTable", "frameTable", "funcTable", "resourceTable", "nativeSymbols", "markers"):
        table = thread[name]
        assert {len(column) for column in table.values() if isinstance(column, list)} <= {table["length"]}, name
    assert sum(thread["samples"]["weight"]) == pytest.approx(samples.total(BYTES), abs=2)
    assert all(prefix is None or prefix < at for at, prefix in enumerate(thread["stackTable"]["prefix"]))
    expected = ["libz.so.1+0x1030", "fill", "grow", "allocate;it"]
    assert _names(thread, thread["samples"]["stack"][0]) == expected
    frame = thread["stackTable"]["frame"][thread["samples"]["stack"][0]]
    assert (thread["frameTable"]["inlineDepth"][frame], thread["frameTable"]["line"][frame]) == (1, 7)
    assert written["libs"][0]["codeId"] == BUILD_ID
    assert written["libs"][0]["breakpadId"] == "3322110055447766" + "8899AABBCCDDEEFF" + "0"
    assert written["meta"]["startTime"] == 1500


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_frame_can_be_written(kind: Kind) -> None:
    samples = samples_of(DUMP)
    samples = dataclasses.replace(samples, frames=[one._replace(kind=kind) for one in samples.frames])
    assert json.loads(firefox.render(samples, "app"))["threads"]
    schema = json.loads((ROOT / "docs" / "profile.schema.json").read_text())
    jsonschema.validate(json.loads(document.render(samples, {"host": "app1", "time": 1.5, "unit": None})), schema)


def _names(thread: Any, stack: int | None) -> list[str]:
    found: list[str] = []
    while stack is not None:
        function = thread["frameTable"]["func"][thread["stackTable"]["frame"][stack]]
        found.insert(0, thread["stringArray"][thread["funcTable"]["name"][function]])
        stack = thread["stackTable"]["prefix"][stack]
    return found
