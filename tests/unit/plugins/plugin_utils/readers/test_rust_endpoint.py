# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A Rust service with tikv-jemallocator that answers with profiles, made as jemalloc_pprof makes them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program, rust_program
from ansible_collections.offheap.profiler.tests.unit.strategies.imported_series import A_DAY, judged

# The first time, compiling the service takes most of a minute.
pytestmark = pytest.mark.slow

STEPS, BLOCKS, SIZE = 4, 500, 1024
LEAK = "rust_endpoint::forget"
Ask = Callable[[str], bytes]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rust_program.built(Path(rust_program.__file__).parent / "rust_endpoint", tmp_path_factory.mktemp("rust"))


@pytest.fixture
def ask(program: Path, tmp_path: Path) -> Iterator[Ask]:
    """Asks the running service, which counts every allocation."""
    environment = {**os.environ, "MALLOC_CONF": "prof:true,lg_prof_sample:0"}
    with subprocess.Popen([program, tmp_path / "dump"], stdout=subprocess.PIPE, env=environment) as service:
        assert service.stdout is not None
        port = int(service.stdout.readline())

        def asked(path: str) -> bytes:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return bytes(answer.read())

        yield asked
        service.kill()


@pytest.fixture
def profiles(ask: Ask, tmp_path: Path) -> list[Path]:
    """One each time that it has forgotten more."""
    files = [tmp_path / f"{step}.pb.gz" for step in range(STEPS)]
    for file in files:
        ask(f"/forget/{BLOCKS}")
        file.write_bytes(ask("/debug/pprof/heap"))
    return files


def test_the_totals_of_pprof_and_of_the_leak(profiles: list[Path], program: Path, tmp_path: Path) -> None:
    reader = DumpReader(Images([program.parent]), tmp_path)
    for step, file in enumerate(profiles, 1):
        data = unpack.read(file, 1 << 20)
        assert detect.source_of(data, "x") == "pprof"
        records = detect.parse(data, "x", Told(interval=1))
        assert (records.measure, records.sampling) == (Measure.LIVE, Sampling(Scheme.POISSON, 1))
        shown = go_program.go(tmp_path, "tool", "pprof", "-unit=B", "-nodefraction=0", "-top", file.name)
        assert re.search(rf"of {records.total.bytes}B total", shown), shown
        samples = reader.read(file).samples
        leaked = 0.0
        for number in range(len(samples)):
            places = samples.stacks[samples.bounds[number] : samples.bounds[number + 1]]
            if any(samples.frames[samples.place_frame[place]].function.startswith(LEAK) for place in places):
                leaked += samples.values[BYTES][number]
        assert leaked == step * BLOCKS * SIZE


def test_a_series_ends_in_the_true_verdict(profiles: list[Path], program: Path, tmp_path: Path) -> None:
    host = judged(profiles, tmp_path, "::1", [program.parent])
    assert host.verdict.answer is Answer.LEAK
    (suspect,) = host.verdict.suspects
    assert any(frame.function.startswith(LEAK) for frame in suspect.path)
    assert suspect.growth == pytest.approx(BLOCKS * SIZE * A_DAY)


def test_without_the_interval_nothing_is_called_a_leak(profiles: list[Path], program: Path, tmp_path: Path) -> None:
    host = judged(profiles, tmp_path, images=[program.parent])
    assert host.verdict.answer is Answer.CANNOT_TELL
    assert "unknown how the profiles" in host.verdict.reason
