# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From the ledger in a service to the verdict on it: what leaks has no deaths."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.imports import Origin, import_profiles
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import survey
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Answer, Verdict
from ansible_collections.offheap.profiler.tests.agent.conftest import service_program
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]
SECONDS, STEP = 9.0, 0.5
DAY = 86400
#: bytes per second that a leak keeps
RATE = 4096 * 1000


def _verdict(archive: Path) -> Verdict:
    opened = Archive.open(archive)
    with reading(opened, pytest.fail) as reader:
        (host,) = survey(opened, reader, Scope(least_span=SECONDS / 2), pytest.fail)
    return host.verdict


@pytest.fixture(scope="module")
def watched(
    tmp_path_factory: pytest.TempPathFactory, jemalloc: Path, library: Path
) -> dict[str, tuple[Verdict, Verdict]]:
    """By shape, the verdict by lives and, without them, by levels; all watched at once."""
    root = tmp_path_factory.mktemp("watched")
    program = service_program("lived")
    services: dict[str, Service] = {}
    try:
        for shape in ("leak", "late", "ended", "cache"):
            (root / shape).mkdir()
            conf = {"conf": "lg_prof_sample:14"}
            services[shape] = Service(root / shape, library, jemalloc, program, (shape, str(SECONDS)), conf)
        for service in services.values():
            service.wait_until_active()
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            time.sleep(STEP)  # the time that the service is watched
            for service in services.values():
                service.ask("dump")
    finally:
        for service in services.values():
            service.kill()
    found = {}
    for shape, service in services.items():
        origin, images = Origin("lived", "app1"), [program.parent]
        import_profiles(service.dumps(), origin, root / shape / "archive", images)
        by_lives = _verdict(root / shape / "archive")
        for book in service.spool.glob("*.lives"):
            book.unlink()
        import_profiles(service.dumps(), origin, root / shape / "levels", images)
        found[shape] = by_lives, _verdict(root / shape / "levels")
    return found


def test_what_has_no_deaths_is_a_leak_at_its_rate(watched: dict[str, tuple[Verdict, Verdict]]) -> None:
    verdict, _levels = watched["leak"]
    assert verdict.answer is Answer.LEAK, verdict.reason
    assert "a cache would look the same only if its entries live longer than" in verdict.reason
    (suspect,) = verdict.suspects
    assert [frame.function for frame in suspect.path[:2]] == ["filled", "keep_one"]
    # Four in a million would be further off, and the processor may be busy with other things.
    assert abs(suspect.growth - RATE * DAY) < 2.4 * suspect.error + 0.1 * RATE * DAY


def test_a_leak_that_began_late_is_told_with_the_time(watched: dict[str, tuple[Verdict, Verdict]]) -> None:
    verdict, levels = watched["late"]
    assert verdict.answer is Answer.LEAK, verdict.reason
    assert "keeps what it allocates, since 20" in verdict.reason
    (suspect,) = verdict.suspects
    assert suspect.path[1].function == "keep_one"
    assert levels.answer is not Answer.NO_LEAK, levels.reason


def test_a_leak_that_has_ended_grew_and_stands(watched: dict[str, tuple[Verdict, Verdict]]) -> None:
    verdict, levels = watched["ended"]
    assert verdict.answer is Answer.GREW, verdict.reason
    assert "keep_one" in verdict.reason and "has stood for" in verdict.reason
    assert levels.answer is Answer.CANNOT_TELL, levels.reason


def test_a_cache_whose_entries_die_is_no_leak(watched: dict[str, tuple[Verdict, Verdict]]) -> None:
    verdict, _levels = watched["cache"]
    assert verdict.answer is Answer.NO_LEAK, verdict.reason
    assert 0 < verdict.bound < RATE * DAY
    assert "too young to tell" in verdict.reason
