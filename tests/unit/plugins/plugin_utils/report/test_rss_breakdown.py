# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.durations import moment
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.rss_breakdown import (
    Origin,
    Unsampled,
    reconcile,
    text_rows,
    with_jvm,
)
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples

MIB = 1 << 20
SAMPLING = Sampling(Scheme.POISSON, 1 << 19)
MEMORY = {
    "rss": 1000 * MIB,
    "rss_file": 40 * MIB,
    "rss_shmem": 0,
    "swap": 0,
    "allocated": 310 * MIB,
    "active": 330 * MIB,
    "metadata": 12 * MIB,
    "resident": 372 * MIB,
}
JVM = {
    "time": 1.0,
    "heap_used": 300 * MIB,
    "heap_committed": 512 * MIB,
    "heap_resident": 400 * MIB,
    "metaspace": 60 * MIB,
    "nmt": {
        "Java Heap": 512 * MIB,
        "Class": 6 * MIB,
        "Metaspace": 54 * MIB,
        "Code": 50 * MIB,
        "Thread": 20 * MIB,
        "GC": 25 * MIB,
        "Internal": MIB,
        "Shared class space": 12 * MIB,
    },
}


def _facts(memory: dict[str, Any] | None = None, jvm: dict[str, Any] | None = None) -> CaptureFacts:
    return replace(capture_samples.facts(), agent={"memory": MEMORY if memory is None else memory}, jvm=jvm)


def _sizes(facts: CaptureFacts, live: float = 300 * MIB) -> dict[str, int]:
    found = reconcile(facts, live, SAMPLING)
    assert found is not None
    return {part.name: round(part.bytes / MIB) for part in found.parts}


def test_a_jvm_with_native_memory_tracking() -> None:
    assert _sizes(_facts(jvm=JVM)) == {
        "Live, sampled": 300,
        "Not sampled": 10,
        "Fragmentation": 20,
        "Allocator metadata": 12,
        "Kept by allocator": 30,
        "Java heap": 400,
        "Metaspace": 60,
        "Compiled code": 50,
        "Thread stacks": 20,
        "JVM, other": 26,
        "Mapped files": 40,
        "Unexplained": 32,
    }


def test_without_tracking_the_jvms_rest_is_unexplained_and_a_note_says_so() -> None:
    found = reconcile(_facts(jvm={**JVM, "nmt": None}), 300 * MIB, SAMPLING)
    assert found is not None
    assert round(found.unexplained / MIB) == 32 + 50 + 20 + 26
    assert any("NativeMemoryTracking" in note for note in found.notes)


def test_a_dump_after_the_jvm_was_asked_last_has_its_newest_answer() -> None:
    """As any dump has that comes between two collections, or between the last one and a rollback."""
    start = capture_samples.facts().dump.time
    answers = [{**JVM, "time": start, "heap_resident": 200 * MIB}, {**JVM, "time": start}, None, None]
    captures = []
    for number, answer in enumerate(answers):
        own = _facts(jvm=answer)
        own = replace(own, dump=replace(own.dump, time=start + 600 * number))
        captures.append(Capture(Path(), "app1", "web.service", "7-aa", number, own.dump.time, own))
    assert _sizes(with_jvm(captures, 3))["Java heap"] == 400
    found = reconcile(with_jvm(captures, 3), 300 * MIB, SAMPLING)
    assert found is not None
    assert found.notes == [f"what the JVM says of itself is of {moment(start)}, when it was asked last"]
    assert _sizes(with_jvm(captures, 0))["Java heap"] == 200, "and no later one"


def test_a_program_without_a_runtime() -> None:
    found = reconcile(_facts(), 300 * MIB, SAMPLING)
    assert found is not None
    assert {part.origin for part in found.parts} == set(Origin) - {Origin.RUNTIME}
    assert found.notes == []


def test_the_difference_to_the_allocators_count_is_named_by_its_size() -> None:
    def meaning(live: float) -> str:
        found = reconcile(_facts(), live, SAMPLING)
        assert found is not None
        return found.parts[1].meaning

    assert meaning(310 * MIB) == "nothing beyond the sampling error"
    assert meaning(100 * MIB) == "allocated before sampling began"
    assert "more than is allocated" in meaning(400 * MIB)


def test_no_part_is_less_than_nothing_where_samples_stand_for_more_than_is_allocated() -> None:
    def found(live: float) -> tuple[dict[str, int], list[str]]:
        breakdown = reconcile(_facts(), live, SAMPLING)
        assert breakdown is not None
        return {part.name: round(part.bytes / MIB) for part in breakdown.parts}, breakdown.notes

    sizes, notes = found(312 * MIB)
    assert (sizes["Live, sampled"], sizes["Not sampled"], sizes["Unexplained"]) == (310, 0, 588)
    assert notes == ["the samples stand for 2.0 MiB more than jemalloc counted, within their error: its count is shown"]
    assert "beyond their error" in found(400 * MIB)[1][0]


def test_records_of_the_allocator_in_pages_in_use_are_not_counted_twice() -> None:
    """jemalloc's metadata has what it allocates for itself, which lies in active pages."""
    sizes = _sizes(_facts({**MEMORY, "resident": 335 * MIB}))
    assert (sizes["Allocator metadata"], sizes["Kept by allocator"], sizes["Unexplained"]) == (5, 0, 625)


def test_growth_is_never_from_before_sampling_began() -> None:
    def meaning(first: Unsampled, live: float = 100 * MIB) -> str:
        found = reconcile(_facts(), live, SAMPLING, first)
        assert found is not None
        return found.parts[1].meaning

    grown = "not explained by the samples: 150.0 MiB more than in the first dump"
    assert meaning(Unsampled(60 * MIB, 100 * MIB)) == grown
    assert meaning(Unsampled(209 * MIB, 100 * MIB)) == "allocated before sampling began"
    assert meaning(Unsampled(-30 * MIB, 100 * MIB), 310 * MIB) == "nothing beyond the sampling error"


def test_swap_and_what_was_never_touched() -> None:
    found = reconcile(_facts({**MEMORY, "rss": 400 * MIB, "swap": 5 * MIB}), 300 * MIB, SAMPLING)
    assert found is not None
    assert (found.unexplained, found.beyond) == (0, 12 * MIB)
    assert found.notes[0].startswith("the parts come to 12.0 MiB more than RSS: some is not in memory")
    assert "5.0 MiB of the process are swapped out" in found.notes[1]


@pytest.mark.parametrize("agent", [None, {"problem": "no"}, {"memory": {"allocated": 1}}])
def test_without_rss_there_is_nothing_to_reconcile(agent: dict[str, Any] | None) -> None:
    assert reconcile(replace(capture_samples.facts(), agent=agent), 1.0, SAMPLING) is None


def test_without_the_allocators_statistics_a_note_says_so() -> None:
    found = reconcile(_facts({"rss": 1000 * MIB}), 300 * MIB, SAMPLING)
    assert found is not None
    assert [part.name for part in found.parts] == ["Live, sampled", "Unexplained"]
    assert len(found.notes) == 2


_sizes_of_all = st.dictionaries(st.sampled_from([*MEMORY]), st.integers(0, 1 << 50))


@given(_sizes_of_all, st.floats(0, 1e15), st.none() | st.just(JVM))
def test_the_parts_add_up_to_rss_and_none_is_less_than_nothing(
    memory: dict[str, int], live: float, jvm: dict[str, Any] | None
) -> None:
    found = reconcile(_facts(memory, jvm), live, SAMPLING)
    assert (found is None) == ("rss" not in memory)
    if found is not None:
        whole = math.fsum(part.bytes for part in found.parts)
        assert math.isclose(whole, memory["rss"] + found.beyond, abs_tol=1.0, rel_tol=1e-9)
        assert all(part.bytes >= 0 for part in found.parts)
        assert text_rows(found)[-1][0] == "Unexplained"
