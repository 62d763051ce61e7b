# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From a living process to the sentence in the report: who holds what each path has allocated."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.console import offline
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.imports import Origin, import_profiles
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.code_paths import Extent, Suspect
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.holding import Holding
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.who_holds import holding
from ansible_collections.offheap.profiler.tests.agent import test_holders
from ansible_collections.offheap.profiler.tests.agent.service import Service, wait_for


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def said(where: Path, jemalloc: Path, library: Path) -> dict[str, Holding]:
    """Of each case of the program, who holds what it has allocated."""
    root, program = where, test_holders.built()
    settings = {"conf": "lg_prof_sample:10", "popen": {"stdin": subprocess.PIPE}}
    service = Service(root, library, jemalloc, program, (), settings)
    try:
        test_holders.begin(service)

        def old() -> str | None:
            look = test_holders.Look(service, program)
            return str(look.answer["path"]) if look.is_of_old_blocks() else None

        dump = Path(wait_for("what is held to be old", old))
    finally:
        service.kill()
    import_profiles([dump], Origin("held", "app1"), root / "archive", [program.parent])
    archive = Archive.open(root / "archive")
    captures = archive.captures()
    found: dict[str, Holding] = {}
    with reading(archive, lambda _warning: None) as reader:
        named = reader.holders(captures, reader.maps(captures))
    assert named is not None
    for stack, told in zip(named.stacks, named.look.stacks, strict=True):
        case = next((frame.function for frame in stack.frames if frame.function.startswith(test_holders.CASES)), None)
        suspect = Suspect(stack.frames, stack.key, Extent.KEY, 1, 1.0, 0.1, 1.0)
        answer = holding(suspect, named)
        if case and case not in found and answer is not None and told.living > 100:
            found[case] = answer
    return found


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("kept_by_unordered_map", "kept by global session_cache of holders, through "),
        (
            "kept_by_its_own_list",
            "kept by their own kind (a list or a tree), which global audit_head of holders begins",
        ),
        ("kept_by_a_static", "kept by global kept_by_a_static::cache of holders, through "),
        ("kept_by_a_stack", "kept by the stack of thread worker-3, through 32768-byte blocks"),
        ("kept_by_a_thread_local", "kept by thread-local mine of holders of thread local-1, through "),
        ("kept_by_an_arena", "kept by memory that is not the allocator's"),
        ("lost_by_overwrite", "lost: nothing leads to them"),
        ("lost_in_a_cycle", "lost: nothing leads to them"),
    ],
)
def test_the_sentence_names_the_holder(said: dict[str, Holding], case: str, words: str) -> None:
    part = said[case].parts[0]
    assert part.by.startswith(words) and part.low > 0.75, said[case].text


def test_what_is_half_lost_is_told_in_two_parts(said: dict[str, Holding]) -> None:
    lost, kept = sorted(said["half_lost"].parts[:2], key=lambda part: part.kind, reverse=True)
    assert lost.kind == "lost" and kept.by == "kept by global halves of holders", said["half_lost"].text
    assert lost.low - 0.02 < 0.5 < lost.high + 0.02


def test_the_type_is_named(said: dict[str, Holding]) -> None:
    assert said["kept_by_vector"].what == "Circle"
    assert "samples of Circle)" in said["kept_by_vector"].text


def test_the_console_tells_the_paths_of_which_most_lives(said: dict[str, Holding], where: Path) -> None:
    store = Archive.open(where / "archive")
    lines = offline.held(store, store.captures()[0].facts, 3, lambda _warning: None)
    assert len(lines) == 9 and lines[1].startswith("    100 %") and lines[2].startswith("    Look ")
    assert "kept_by_" in lines[0] or "lost_" in lines[0]
    assert said


def test_a_hostile_file_costs_its_own_answer_alone(said: dict[str, Holding], where: Path) -> None:
    assert said
    archive = Archive.open(where / "archive")
    captures = archive.captures()
    beside = captures[0].holders
    assert beside is not None
    before = beside.read_bytes()
    warnings: list[str] = []
    try:
        beside.write_bytes(gzip.compress(b'{"format": 1, "files": "hostile"}'))
        with reading(archive, warnings.append) as reader:
            assert reader.holders(captures, reader.maps(captures)) is None
    finally:
        beside.write_bytes(before)
    assert len(warnings) == 1 and "who holds what in a process of held.service on app1 was left out" in warnings[0]
