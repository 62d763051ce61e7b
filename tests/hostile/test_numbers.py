# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Numbers that no host has: an error of the one that sends them, and of no other."""

from __future__ import annotations

import io
import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import sidecar, wire
from ansible_collections.offheap.profiler.plugins.module_utils.formats.sidecar import SidecarError
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import plan
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.unpack_tar import TransferError
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage import findings
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage.look import SampleError, parse
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.triage.test_rules import sample

HUGE = 10**400
WRONG = {"huge": HUGE, "-huge": -HUGE, "1e300": 1e300, "inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _read(data: dict[str, Any]) -> plan.Listing:
    return plan.read_listing(data, "app1", max_dump=1 << 20, max_image=1 << 30)


@pytest.mark.parametrize("number", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("place", ["dump", "process", "left", "free", "identity"])
def test_a_listing(number: float, place: str) -> None:
    data = capture_samples.listing(b"one")
    match place:
        case "dump":
            data["captures"][0]["time"] = number
        case "process":
            data["processes"][0]["start_time"] = number
        case "identity":
            data["captures"][0]["identity"][0] = number
        case _:
            data[place] = number
    with costs_at_most(1, 4), pytest.raises(TransferError, match="out of range"):
        _read(data)


@pytest.fixture
def old_python() -> Iterator[None]:
    """As before 3.10.7, when int() took digits without end."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(limit)


def test_a_number_of_a_million_digits(old_python: None, tmp_path: Path) -> None:
    """int() of it takes longer than anybody waits: in a sidecar, an agent's answer, a message."""
    text = b'{"format": %s}' % (b"9" * 1_000_000)
    (tmp_path / "sidecar").write_bytes(text)
    with (tmp_path / "sidecar").open("rb") as file, costs_at_most(1, 16), pytest.raises(SidecarError, match="not JSON"):
        sidecar.read(file.fileno(), "jeprof.1.0.i0.heap", 1)
    with costs_at_most(1, 16), pytest.raises(client.AgentError, match="does not answer in JSON"):
        client._parse(text, "socket")
    message = struct.pack(">cI", b"J", len(text)) + text
    with costs_at_most(1, 16), pytest.raises(wire.WireError, match="a number of 1000000 digits"):
        wire.read(io.BytesIO(message).read, 1 << 21)


@pytest.mark.parametrize("kind", ["incomplete", "unreadable", "writing"])
def test_dumps_that_are_counted_and_not_named(kind: str) -> None:
    data = capture_samples.listing(b"one")
    data["counts"][kind] = 3
    with pytest.raises(TransferError, match="does not name"):
        _read(data)


@pytest.mark.parametrize("number", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("key", ["time", "rss", "age", "pid", "start", "threads"])
def test_a_sample(tmp_path: Path, key: str, number: float) -> None:
    bad = sample(700)
    (bad if key == "time" else bad["processes"][0])[key] = number
    with costs_at_most(1, 4), pytest.raises(SampleError, match=key):
        parse(bad)
    warnings = _judged(tmp_path, bad)
    assert len(warnings) == 1 and "liar" in warnings[0]


def test_samples_that_lie_no_time_apart(tmp_path: Path) -> None:
    first, second = sample(700), sample(700)
    first["time"], second["time"], second["processes"][0]["rss"] = 0, 5e-324, 1 << 61
    assert _judged(tmp_path, first, second) == []


def test_a_sample_of_great_depth(tmp_path: Path) -> None:
    _judged(tmp_path, sample(700))
    (tmp_path / "liar" / "1.json").write_text('{"host": "liar", "samples": ' + "[" * 100000 + "]" * 100000 + "}")
    with costs_at_most(2, 16):
        warnings = list[str]()
        assert _hosts(tmp_path, warnings) == ["liar", "next"]
    assert len(warnings) == 1


def _judged(directory: Path, *bad: dict[str, Any]) -> list[str]:
    """What is warned of where one host sends these and the next one sound samples, which must be judged."""
    for host, samples in {"liar": bad, "next": (sample(700), sample(4300, java_heap=90))}.items():
        (directory / host).mkdir()
        for number, one in enumerate(samples):
            (directory / host / f"{number}.json").write_text(json.dumps({"host": host, "samples": [one]}))
    warnings = list[str]()
    assert "next" in _hosts(directory, warnings)
    return warnings


def _hosts(directory: Path, warnings: list[str]) -> list[str]:
    found = findings.findings(directory, [], [], warnings.append)
    json.dumps([finding.data for finding in found])
    findings.table(found)
    return [finding.host for finding in found]
