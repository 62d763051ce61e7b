# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from hypothesis import given

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import stacks
from ansible_collections.offheap.profiler.plugins.plugin_utils.export.top import Look
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, Samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Granularity, Measure, Table
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile, profiles

MIB = 1 << 20


def _table(found: Samples) -> Table:
    return Table(found, Granularity.FUNCTIONS, Measure.INUSE_SPACE)


def _collapsed(found: Samples) -> str:
    return b"".join(stacks.collapsed(_table(found))).decode("utf-8")


def test_stacks_are_written_from_the_root_on() -> None:
    found = profile({("inflate", "unzip", "main"): 50.4, ("a;b", "100%"): 7.0, (): 3.0, ("nothing",): 0.2})
    assert _collapsed(found) == "100%25;a%3Bb 7\n[no stack] 3\nmain;unzip;inflate 50\n"


def test_stacks_of_the_same_names_are_one_line() -> None:
    """Inlined functions, or functions in two modules, can share a name."""
    found = profile(
        {("[jit]", "main"): 2.0, ("libz.so+0x10", "main"): 3.0, ("java:f", "main"): 4.0, ("f", "main"): 5.0}
    )
    assert _collapsed(found) == "main;[jit] 2\nmain;f 9\nmain;libz.so+0x10 3\n"


@given(profiles())
def test_every_line_reads_back(found: Samples) -> None:
    written = [[frame.label for frame in frames][::-1] or ["[no stack]"] for frames in found.each_stack_of_frames()]
    total = 0
    for line in _collapsed(found).splitlines():
        stack, _space, size = line.rpartition(" ")
        total += int(size)
        assert [name.replace("%3B", ";").replace("%25", "%") for name in stack.split(";")] in written
    assert abs(total - found.total(BYTES)) <= len(found)


def test_traces_are_for_people_the_largest_first() -> None:
    found = profile({("a", "main"): 2.0 * MIB, ("b", "main"): 50.0 * MIB, (): 1.0 * MIB})
    shown = stacks.traces(_table(found), Look(limit=2), [("Unit", "x.service")])
    assert shown == (
        "Unit  x.service\n"
        "\n"
        "Total: 53.0 MiB ± 10.1 MiB (inuse_space, by functions)\n"
        f"{'-' * 60}\n"
        "      50.0 MiB ± 9.8 MiB  b\n"
        "                          main\n"
        f"{'-' * 60}\n"
        "       2.0 MiB ± 2.0 MiB  a\n"
        "                          main\n"
    )
