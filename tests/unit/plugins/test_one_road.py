# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Whatever happens to the captures of an archive, the report, the assertion, the push and the console agree."""

from __future__ import annotations

import contextlib
import functools
import gzip
import importlib
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families

from ansible_collections.offheap.profiler.console import offline
from ansible_collections.offheap.profiler.plugins.action import leak_assert, leak_push, leak_report
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.progress import Progress
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import survey
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import Host
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish import pyroscope
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import host_report
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies.described_archives import (
    SMALL_LIMITS,
    DescribedArchive,
    archives,
)

PLUGINS = "ansible_collections.offheap.profiler.plugins"
Place = tuple[str, str]  # unit and host
# A second each; make soak tries more.
EXAMPLES = int(os.environ.get("OFFHEAP_ROADS", "25"))
_LABELS = ("unit", "host", "path", "suspect")


@dataclass
class Told:
    """What one road reported: what it judged, what it returned or wrote, and its warnings."""

    hosts: list[Host] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    warnings: set[str] = field(default_factory=set)


@contextlib.contextmanager
def _heard() -> Iterator[Told]:
    """Records what is judged: each process with its verdict and the captures behind it."""
    told = Told()

    def hearing(judge: Any, *arguments: Any) -> Iterator[tuple[Host, Any]]:
        for host, made in judge(*arguments):
            told.hosts.append(host)
            yield host, made

    with pytest.MonkeyPatch.context() as patch:
        for module in (host_report, survey):
            patch.setattr(module, "finished", functools.partial(hearing, survey.finished))
        yield told


def _act(plugin: Any, check: bool = False, **arguments: Any) -> Told:
    """Run an action on the archive here."""
    with _heard() as told:
        told.result = run_action(plugin, check, archive="archive", **arguments)
    warnings = told.result.pop("warnings", [])
    told.warnings = {text for text in warnings if "has no captures of the units" not in text}
    return told


def _report() -> Told:
    """In check mode, so that nothing is kept in the archive."""
    return _act(leak_report, check=True, dest="report", show=False)


def _console() -> Told:
    with _heard() as told:
        made = offline.reported(Path("archive"), Path("console"), [], told.warnings.add, Progress())
    told.result["reports"] = [leak_report._returned(report, paths) for report, paths in made.reports]
    told.written = {kind: Path(path).read_text() for kind, path in made.fleet.items()}
    return told


def _push() -> Told:
    told = _act(leak_push, textfile="offheap.prom")
    told.written["textfile"] = Path("offheap.prom").read_text()
    return told


def _profiles(patch: pytest.MonkeyPatch) -> tuple[dict[Path, bytes], set[str]]:
    """What would be pushed to Pyroscope, by the capture's directory, and the warnings."""
    sent: dict[Path, bytes] = {}

    def keep(_server: object, capture: Capture, profile: bytes) -> None:
        sent[capture.path] = profile

    patch.setattr(pyroscope, "push", keep)
    told = _act(leak_push, pyroscope_url="http://127.0.0.1:1")
    return sent, told.warnings


def _said_of_hosts(told: Told) -> dict[Place, dict[str, Any]]:
    return {(report["unit"], report["host"]): report for report in told.result["reports"]}


def _measured(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples of a textfile, by name and by the values of those labels in _LABELS that they have."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in _LABELS if name in sample.labels)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def _judged_alike(one: Told, other: Told) -> None:
    """The same processes, with the same verdicts from the same captures, and the same ones left out."""
    for here, there in zip(one.hosts, other.hosts, strict=True):
        assert (here.unit, here.host, here.captures, here.verdict) == (
            there.unit,
            there.host,
            there.captures,
            there.verdict,
        )
        for process, again in zip(here.processes, there.processes, strict=True):
            assert process.watched == again.watched
            assert [capture.path for capture in process.captures] == [capture.path for capture in again.captures]
    assert one.warnings == other.warnings


def _the_assertion_says_what_the_report_says(asserted: Told, reported: Told) -> None:
    said = _said_of_hosts(reported)
    rates: Counter[Place] = Counter()
    paths: dict[Place, list[list[str]]] = {}
    for leak in asserted.result["leaks"]:
        for host, rate in leak["hosts"].items():
            rates[leak["unit"], host] += rate
            paths.setdefault((leak["unit"], host), []).append(leak["path"])
    leaking = {place for place, report in said.items() if report["verdict"] == "leak"}
    assert set(rates) == leaking
    assert asserted.result.get("failed", False) == bool(leaking or not asserted.result["judged"])
    for place in leaking:
        assert rates[place] == pytest.approx(said[place]["growth_bytes_per_day"], abs=20)
        leaves = {path[0] for path in paths[place]}
        assert {suspect["path"][0] for suspect in said[place]["suspects"]} <= leaves


def _what_is_pushed_says_what_the_report_says(pushed: Told, console: Told) -> None:
    measured = _measured(pushed.written["textfile"])
    said = _said_of_hosts(console)
    leaks = {place: float(report["verdict"] == "leak") for place, report in said.items() if report["process"]}
    told = {place for place, report in said.items() if report["verdict"] != "cannot-tell"}
    assert measured.get("offheap_leak", {}) == {place: leaks[place] for place in told}
    rates = measured.get("offheap_growth_bytes_per_day", {})
    assert {place: round(rate) for place, rate in rates.items()} == {
        place: said[place]["growth_bytes_per_day"] for place in told
    }
    page: dict[tuple[str, str], dict[str, Any]] = {
        (unit["unit"], suspect["short"]): suspect
        for unit in json.loads(console.written.get("json", '{"units": []}'))["units"]
        for suspect in unit["suspects"]
    }
    grown: dict[tuple[str, str], list[float]] = {}
    for (unit, _host, short, _number), rate in measured.get("offheap_suspect_growth_bytes_per_day", {}).items():
        grown.setdefault((unit, short), []).append(rate)
    assert set(grown) == set(page)
    for key, rates_of_hosts in grown.items():
        assert round(math.fsum(rates_of_hosts) / len(page[key]["hosts"])) == page[key]["growth"]


def _collapsed(profile: bytes) -> dict[str, int]:
    """The stacks of a pprof profile by name, root first, with live bytes."""
    found = profile_proto.profile_class()()
    found.ParseFromString(gzip.decompress(profile))
    texts = list(found.string_table)
    column = [texts[kind.type] for kind in found.sample_type].index("inuse_space")
    names = {function.id: texts[function.name] for function in found.function}
    lines = {one.id: [names[line.function_id] for line in one.line] for one in found.location}
    stacks: Counter[str] = Counter()
    for sample in found.sample:
        leaf_first = [name for location in sample.location_id for name in lines[location]]
        stacks[";".join(reversed(leaf_first))] += sample.value[column]
    return dict(stacks)


def _profiles_have_the_names_of_the_report(profiles: dict[Path, bytes], console: Told) -> None:
    said = _said_of_hosts(console)
    read = {capture.path for host in console.hosts for process in host.processes for capture in process.captures}
    assert read <= set(profiles)
    for host in console.hosts:
        if host.decisive is None:
            continue
        folded = Path(said[host.unit, host.host]["files"]["folded"]).read_text()
        lines = [line.rpartition(" ") for line in folded.splitlines()]
        shown = {stack.replace("%3B", ";").replace("%25", "%"): int(size) for stack, _space, size in lines}
        pushed = _collapsed(profiles[host.decisive.captures[-1].path])
        assert set(pushed) == set(shown)
        assert pushed == pytest.approx(shown, abs=50), "but for rounding, stack by stack"


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(described=archives())
def test_all_roads_from_an_archive_say_the_same(described: DescribedArchive) -> None:
    with (
        tempfile.TemporaryDirectory() as here,
        contextlib.chdir(here),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(os, "fsync", lambda _descriptor: None)
        for name, limit in SMALL_LIMITS.items():
            module, _dot, constant = name.rpartition(".")
            patch.setattr(importlib.import_module(f"{PLUGINS}.{module}"), constant, limit)
        described.make(Path("archive"))
        reported, asserted, pushed, console = _report(), _act(leak_assert), _push(), _console()
        for other in (asserted, pushed, console):
            _judged_alike(reported, other)
        assert [{**report, "files": ()} for report in console.result["reports"]] == [
            {**report, "files": ()} for report in reported.result["reports"]
        ]
        _the_assertion_says_what_the_report_says(asserted, reported)
        _what_is_pushed_says_what_the_report_says(pushed, console)
        profiles, _warnings = _profiles(patch)
        _profiles_have_the_names_of_the_report(profiles, console)
