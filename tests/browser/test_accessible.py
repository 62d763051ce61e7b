# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""axe-core finds nothing serious on the page, in both themes and at two sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from ansible_collections.offheap.profiler.plugins.plugin_utils.report import page as report_page
from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.conftest import Open

AXE = Path(report_page.__file__).resolve().parents[3] / "tools/report/node_modules/axe-core/axe.min.js"
SIZES = {1440: 900, 360: 780}


def serious(page: Page) -> list[str]:
    """What axe-core holds to be serious or worse: the rule, where, and why."""
    if not AXE.exists():
        pytest.skip("no axe-core (npm ci --ignore-scripts in tools/report)")
    page.evaluate(AXE.read_text())
    violations: list[dict[str, Any]] = page.evaluate("axe.run().then(found => found.violations)")
    return [
        f"{found['id']}: {node['target']}: {node['failureSummary']}"
        for found in violations
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (360, "dark")])
def test_nothing_serious_on_the_page(opened: Open, width: int, scheme: str) -> None:
    page = opened(width=width, height=SIZES[width], scheme=scheme)
    assert serious(page) == []
    page.locator("#hosts button", has_text="No leak").first.click()
    page.locator("#search").fill("compile")
    page.keyboard.press("Tab")
    assert serious(page) == []
    page.locator("label", has_text="All hosts").click()
    page.locator("#fold").check()
    assert serious(page) == []
    page.keyboard.press("?")
    page.wait_for_selector("#help")
    assert serious(page) == []
    page.keyboard.press("Escape")
    page.locator(".card.no-leak").click()
    assert serious(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_where_a_small_leak_and_a_triage_are(
    opened: Open, pages: Callable[[str, Callable[[], dict[str, Any]]], Path], scheme: str
) -> None:
    page = opened(pages("small-leak-triage", lambda: {**fleets.small_leak(), "triage": [fleets.LOOKED]}), scheme=scheme)
    page.wait_for_selector("#triage")
    assert serious(page) == []


def test_what_is_serious_is_found(opened: Open) -> None:
    page = opened()
    page.evaluate("document.querySelector('h1').style.color = '#eee'")
    assert any(found.startswith("color-contrast: ['h1']") for found in serious(page))
