# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page of a single profile: the report's graph and table, alone or against an older profile."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import flamegraph
from ansible_collections.offheap.profiler.plugins.plugin_utils.export.flamegraph import Mark, Page
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import Samples
from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.conftest import Open
from ansible_collections.offheap.profiler.tests.browser.test_accessible import serious
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

ROW = 21
HINT = {"title": "a stream is not closed", "check": "Close it.", "link": "https://example.invalid/close"}


def _samples(leaked: float) -> Samples:
    return fleets.moved(profile(fleets.jvm(leaked, random.Random(3))), fleets.LIBRARIES)


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    mark = Mark(64.0 * fleets.MIB, 6.0 * fleets.MIB, "inflate ← …", lambda frames: frames[0].label == "inflate", [HINT])
    facts = [("Process", "2211 /usr/bin/java")]
    page = Page("frontend.service", "app1", "leak", "Leak of 64.0 MiB/day", "it grows", facts, [mark], "09:00:00 UTC")
    path = tmp_path / "compared.html"
    path.write_text(flamegraph.render(page, _samples(80), _samples(5)))
    return path


@pytest.fixture
def single(tmp_path: Path) -> Path:
    path = tmp_path / "single.html"
    path.write_text(flamegraph.render(Page("a.heap", "app1", "", "Total: 162.1 MiB", ""), _samples(80)))
    return path


def test_a_leaking_process_opens_with_what_has_grown(opened: Open, compared: Path) -> None:
    page = opened(compared)
    expect(page.locator(".verdict")).to_contain_text("Leak of 64.0 MiB/day")
    expect(page.locator(".verdict")).to_contain_text("2211 /usr/bin/java")
    expect(page.locator("input[value=grown]")).to_be_checked()
    expect(page.locator("#legend")).to_contain_text("from 09:00:00 UTC (older) to now (newer)")
    expect(page.locator(".functions tbody tr").first).to_contain_text("inflate")
    expect(page.locator("#suspects")).to_contain_text("Perhaps a stream is not closed: Close it. https://example")
    page.locator("#suspects button").click()
    expect(page.locator("#detail")).to_contain_text(re.compile("^inflate · .*100.0 % of it on a suspected path"))
    assert page.title() == "frontend.service on app1: native memory"


def test_one_profile_has_a_graph_and_a_table_and_nothing_to_compare_with(opened: Open, single: Path) -> None:
    page = opened(single)
    for part in ("#time", "#versus", "#widths"):
        expect(page.locator(part)).to_be_hidden()
    assert page.locator("#growth, #memory, #threads, #suspects").count() == 0
    page.locator("#graph").hover(position={"x": 12, "y": ROW * 1.5})
    expect(page.locator("#tip")).to_contain_text("start_thread")
    page.locator("#search").fill("^inflate$")
    expect(page.locator("#found")).to_contain_text("1 frame, 65.6 MiB")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.locator("#graph").focus()
    page.keyboard.press("f")
    expect(page.locator(".functions tbody")).to_contain_text("[libz.so.1]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_on_it_is_seriously_inaccessible(opened: Open, compared: Path, single: Path, scheme: str) -> None:
    for path in (compared, single):
        page = opened(path, scheme=scheme, width=360, height=780)
        assert serious(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
