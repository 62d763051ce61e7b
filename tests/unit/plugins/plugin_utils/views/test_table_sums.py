# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What functions hold with all that they call, against sums that are made stack by stack."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import Samples, located, named
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Measure as Counted
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.stack_builder import StackBuilder
from ansible_collections.offheap.profiler.plugins.plugin_utils.views import table
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Granularity, Measure, Table


def made(functions: int, stacks: int) -> tuple[Samples, Counter[str]]:
    """Samples of random stacks, in which functions recur, and what each function holds with its callees."""
    chance, builder = random.Random(52), StackBuilder("x")
    places = [builder.named(Frame(f"f{number}", "")) for number in range(functions)]
    held: Counter[str] = Counter()
    for number in range(stacks):
        few = chance.sample(range(functions), 3)
        few.append((few[0] + (1 << 16)) % functions)  # its number ends in the same 16 bits, if there are so many
        stack = chance.choices(few, k=chance.randrange(9))
        builder.add([places[function] for function in stack], (1, 1 + number))
        for function in {*stack}:
            held[f"f{function}"] += 1 + number
    records = builder.records(Counted.LIVE, Sampling(Scheme.POISSON, 64), unbiased=True)
    return named(located(records, {}), lambda _locations: []), held


@pytest.mark.parametrize(("functions", "stacks", "part"), [(5, 100, 7), (5, 100, 1 << 14), (70_000, 3000, 1000)])
def test_a_function_that_recurs_counts_once_in_a_stack(
    monkeypatch: pytest.MonkeyPatch, functions: int, stacks: int, part: int
) -> None:
    monkeypatch.setattr(table, "_PART", part)
    samples, held = made(functions, stacks)
    found = Table(samples, Granularity.FUNCTIONS, Measure.INUSE_SPACE)
    rows = [row for row in found.rows() if row.name != table.NO_STACK]
    assert {row.name: row.cumulative for row in rows} == held
    scatter = samples.sampling.scatter
    assert {row.name: row.error for row in rows} == pytest.approx(
        {name: found.error(scatter * size) for name, size in held.items()}
    )
