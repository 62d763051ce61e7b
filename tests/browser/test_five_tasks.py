# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The five tasks of docs/report.md, each with just the steps that its table counts for this page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.conftest import Open

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "report.md"


class Steps:
    """Clicks and keys on a page, counted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.done = 0

    def click(self, part: Locator, x: float = 0.5, shift: bool = False) -> None:
        """Click into the middle of a part, or at another share of its width."""
        box = part.bounding_box()
        assert box is not None
        self.done += 1
        part.click(position={"x": box["width"] * x, "y": box["height"] / 2}, modifiers=["Shift"] if shift else [])

    def key(self, key: str) -> None:
        self.done += 1
        self.page.keyboard.press(key)


def _rows() -> dict[str, list[str]]:
    """The table's cells by the task: ours, pprof's and memray's."""
    part = DOCUMENT.read_text().partition("## Five tasks")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    return {task: cells for task, *cells in rows[2:]}


def _steps(cell: str) -> float:
    """How many steps a cell begins with; what a page cannot do takes endless ones."""
    number = re.match(r"\d+", cell)
    return float(number[0]) if number else float("inf")


@pytest.fixture
def steps(opened: Open) -> Iterator[Steps]:
    yield Steps(opened())


def _as_told(task: str, steps: Steps) -> None:
    assert steps.done == _steps(_rows()[task][0]), "docs/report.md tells another number of steps"


def test_no_task_takes_more_steps_than_with_the_better_of_the_two() -> None:
    rows = _rows()
    assert len(rows) == 5
    for ours, *theirs in rows.values():
        assert _steps(ours) <= min(map(_steps, theirs))


def test_which_function_leaks_most(steps: Steps) -> None:
    expect(steps.page.locator(".card").first).to_contain_text("inflate ← java.util.zip.Inflater.inflateBytesBytes")
    expect(steps.page.locator(".functions tbody tr").first).to_contain_text("inflate")
    _as_told("which function leaks most", steps)


def test_who_calls_it(steps: Steps) -> None:
    steps.click(steps.page.locator(".functions tbody button").first)
    expect(steps.page.locator("#above")).to_have_text("Callers of inflate")
    expect(steps.page.locator("#callers")).to_be_in_viewport()
    _as_told("who calls it, all of them", steps)


def test_what_changed_between_two_times(steps: Steps) -> None:
    plot = steps.page.locator("#plot .u-over")
    steps.click(plot, x=0.45, shift=True)
    steps.click(plot, x=0.8)
    older, newer = (fleets.START + number * fleets.STEP for number in (10, 18))
    expect(steps.page.locator("input[value=grown]")).to_be_checked()
    legend = steps.page.inner_text("#legend")
    times = re.search(r"from \w+ (.*) UTC \(older\) to \w+ (.*) UTC \(newer\)", legend)
    assert times is not None
    found = [
        steps.page.evaluate("text => Date.parse(text + 'Z') / 1000", one.replace(" ", "T")) for one in times.groups()
    ]
    assert found == pytest.approx([older, newer], abs=fleets.STEP)
    expect(steps.page.locator("#detail")).to_contain_text(re.compile(r"\+\d+\.\d MiB since"))
    _as_told("what changed between two times of your choice", steps)


def test_hide_the_runtime(steps: Steps) -> None:
    steps.key("f")
    names = steps.page.locator(".functions tbody button").all_inner_texts()
    assert "[libz.so.1]" in names and "Frontend.serveAsset" in names
    runtime = ("java.", "com.sun.", "JavaCalls", "Compile", "os::", "start_thread", "thread_native_entry")
    assert not [name for name in names if name.startswith(runtime)]
    _as_told("hide the runtime", steps)


def test_give_it_to_a_colleague(steps: Steps, opened: Open) -> None:
    _as_told("give it to a colleague", steps)  # the file itself
    steps.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    steps.page.keyboard.press("f")
    steps.click(steps.page.locator("#copy"))
    expect(steps.page.locator("#copy")).to_have_text("Copied")
    link = steps.page.evaluate("navigator.clipboard.readText()")
    expect(opened(at=link.partition("#")[2]).locator("#fold")).to_be_checked()
