# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Some seconds of coverage-guided fuzzing of each reader; ``make soak`` shares ten million inputs out among them.

Each reader of a file that people have gets its own million inputs by table.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.fuzz import on_controller, one_input, table

# Seconds without OFFHEAP_FUZZ_INPUTS, and the part of these inputs that the reader gets, of a hundred: less where
# an input is many, or is read by many.
READERS = {
    ("on_controller", "dump"): (6, 1),
    ("on_controller", "unknown"): (4, 1),
    ("on_controller", "maps"): (2, 8),
    ("on_controller", "elf"): (2, 8),
    ("on_controller", "facts"): (2, 8),
    ("on_controller", "wire"): (2, 8),
    ("on_controller", "lives"): (2, 8),
    ("on_controller", "holders"): (2, 8),
    ("on_controller", "perf-map"): (2, 8),
    ("on_controller", "transfer"): (2, 3),
    ("on_target", "recording"): (2, 8),
    ("on_target", "sidecar"): (2, 8),
    ("on_target", "image"): (2, 8),
    ("on_target", "spooled"): (2, 6),
    ("on_target", "proc"): (3, 3),
    ("on_target", "jvm"): (2, 3),
    ("on_target", "answer"): (2, 3),
}
INPUTS = int(os.environ.get("OFFHEAP_FUZZ_INPUTS", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids="-".join)
def test_no_input_breaks_the_reader(tmp_path: Path, reader: tuple[str, str]) -> None:
    seconds, part = READERS[reader]
    inputs = INPUTS * part // 100
    came = table.tried(tmp_path, reader, inputs, seconds)
    print(f"{reader}: {came}")
    assert came.inputs >= (inputs or 200)
    assert came.read


@pytest.mark.parametrize("reader", [name for name in on_controller.FILES if name != "unknown"])
def test_a_reader_of_files_reads_what_it_begins_with(reader: str) -> None:
    target = on_controller.FILES[reader]
    read, refused, _slowest = one_input.CAME
    seeds = target.seeds()
    for seed in seeds.values():
        target.read(seed)
    assert [*one_input.CAME[:2]] == [read + len(seeds), refused]
