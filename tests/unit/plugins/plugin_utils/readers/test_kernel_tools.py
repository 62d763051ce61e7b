# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""memleak and perf on the running kernel: our totals are their own, and what is said of a series is true."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.host_report import Limits, reports
from ansible_collections.offheap.profiler.tests.unit.strategies import kernel_tools
from ansible_collections.offheap.profiler.tests.unit.strategies.imported_series import A_DAY, judged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets only root watch")

STEPS, BLOCKS, PAGES = 4, 999, 500
LEAKED = BLOCKS * 1001


@pytest.fixture
def program(tmp_path: Path) -> Iterator[kernel_tools.Told]:
    with kernel_tools.running(tmp_path) as running:
        yield running


def through(function: str, records: Records) -> int:
    """Bytes of the stacks that a function is in."""
    stacks = zip(records.stacks(), records.counts.bytes, strict=True)
    return sum(size for stack, size in stacks if any(records.names[place].function == function for place in stack))


@pytest.mark.slow
def test_memleak(program: kernel_tools.Told, tmp_path: Path) -> None:
    files = kernel_tools.memleak_reports(program, tmp_path, [BLOCKS] * STEPS)
    for step, file in enumerate(files, 1):
        data = file.read_bytes()
        assert detect.source_of(data, "x") == "memleak"
        records = detect.parse(data, "x", Told())
        assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
        assert through("leak", records) == step * LEAKED
        printed = re.findall(rb"(\d+) bytes in (\d+) allocations from stack", data)
        own = [sum(map(int, column)) for column in zip(*printed, strict=True)]
        assert [records.total.bytes, records.total.objects] == own
    host = judged(files, tmp_path)
    assert host.verdict.answer is Answer.LEAK
    (suspect,) = host.verdict.suspects
    assert [frame.function for frame in suspect.path[:3]] == ["take", "leak", "main"]
    assert suspect.growth == pytest.approx(LEAKED * A_DAY)


@pytest.mark.slow
def test_perf(program: kernel_tools.Told, tmp_path: Path) -> None:
    files = []
    for step in range(1, STEPS + 1):
        data = kernel_tools.faults(program, tmp_path, step * PAGES)
        files.append(kernel_tools.script(data))
        text = files[-1].read_bytes()
        assert detect.source_of(text, "x") == "perf"
        records = detect.parse(text, "x", Told())
        assert (records.measure, records.sampling) == (Measure.GROWN, EXACT)
        assert through("touch", records) == step * PAGES * 4096
        reported = subprocess.run(["perf", "report", "-i", data, "--stdio"], capture_output=True, text=True, check=True)
        assert f"# Event count (approx.): {records.total.objects}\n" in reported.stdout
        assert records.total.bytes == records.total.objects * 4096
    host = judged(files, tmp_path)
    assert (host.verdict.answer, host.verdict.suspects) == (Answer.CANNOT_TELL, [])
    assert "not what is live" in host.verdict.reason
    (report,) = reports(Archive.open(tmp_path / "archive"), Scope(), Limits(), pytest.fail, False)
    assert f"{STEPS * PAGES * 4096 / 2**20:.1f} MiB" in report.files["txt"] and "touch" in report.files["txt"]
