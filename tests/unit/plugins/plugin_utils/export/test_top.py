# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import top
from ansible_collections.offheap.profiler.plugins.plugin_utils.export.top import Look
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import Samples, variances
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Granularity, Measure, Table
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile, profiles

MIB = 1 << 20


def _table(found: Samples) -> Table:
    return Table(found, Granularity.FUNCTIONS, Measure.INUSE_SPACE)


def _hunted() -> Table:
    return _table(
        profile(
            {
                ("inflate", "unzip", "main"): 50 * MIB,
                ("deflate", "zip", "main"): 25 * MIB,
                ("walk", "walk", "walk", "main"): 25 * MIB,
                (): 0,
            }
        )
    )


def test_the_table_has_flat_and_cumulative_bytes_with_their_error() -> None:
    assert top.render(_hunted(), Look(), [("Unit", "frontend.service"), ("Verdict", "Leak\nfast")]) == (
        "Unit     frontend.service\n"
        "Verdict  Leak\n"
        "         fast\n"
        "\n"
        "Total: 100.0 MiB ± 13.9 MiB (inuse_space, by functions)\n"
        "± is the 95 % interval of cum from sampling alone.\n"
        "\n"
        "      flat  flat%   sum%        cum   cum%          ±  function\n"
        "  50.0 MiB  50.0%  50.0%   50.0 MiB  50.0%    9.8 MiB  inflate\n"
        "  25.0 MiB  25.0%  75.0%   25.0 MiB  25.0%    6.9 MiB  deflate\n"
        "  25.0 MiB  25.0% 100.0%   25.0 MiB  25.0%    6.9 MiB  walk\n"
        "       0 B   0.0% 100.0%  100.0 MiB 100.0%   13.9 MiB  main\n"
        "       0 B   0.0% 100.0%   50.0 MiB  50.0%    9.8 MiB  unzip\n"
        "       0 B   0.0% 100.0%   25.0 MiB  25.0%    6.9 MiB  zip\n"
    )


@pytest.mark.parametrize(
    ("look", "names"),
    [
        (Look(limit=2), ["inflate", "deflate"]),
        (Look(cumulative=True, limit=3), ["main", "inflate", "unzip"]),
    ],
)
def test_the_first_rows_are_shown_in_the_order_asked_for(look: Look, names: list[str]) -> None:
    assert [row.name for row in top.shown(_hunted(), look)] == names
    assert len(top.render(_hunted(), look, []).splitlines()) == 4 + len(names)


def test_a_profile_without_samples_is_a_table_without_rows() -> None:
    lines = top.render(_table(profile({})), Look(), []).splitlines()
    assert lines[0] == "Total: 0 B ± 0 B (inuse_space, by functions)"
    assert len(lines) == 4


def test_what_has_no_stack_has_a_row() -> None:
    (row,) = _table(profile({(): 3.0})).rows()
    assert (row.name, row.flat, row.cumulative) == ("[no stack]", 3.0, 3.0)


@pytest.mark.parametrize("exact", [False, True])
def test_an_error_that_nobody_knows_is_shown_as_such(exact: bool) -> None:
    found = profile({("a",): 5.0 * MIB})
    unknown = Sampling(Scheme.UNKNOWN)
    shown = _table(replace(found, sampling=unknown, variance=variances(found.values, unknown)))
    total, *_head, row = top.render(shown, Look(exact=exact), []).splitlines()
    assert "± unknown" in total and row.split()[-2:] == ["unknown", "a"]


@given(profiles())
def test_flat_bytes_add_up_to_the_total(found: Samples) -> None:
    table = _table(found)
    rows = table.rows()
    assert math.isclose(math.fsum(row.flat for row in rows), table.total, rel_tol=1e-9, abs_tol=1e-6)
    for row in rows:
        assert row.flat <= row.cumulative * (1 + 1e-9) <= table.total * (1 + 2e-9)
    assert len(top.render(table, Look(), []).splitlines()) == len(rows) + 4
