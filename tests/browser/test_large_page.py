# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A page whose data is packed, as a large fleet's is, opens like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import embedding
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import page as report_page
from ansible_collections.offheap.profiler.tests.browser import fleets

Open = Callable[..., Page]


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = fleets.many_hosts()
    plain = len(report_page.render(data))
    monkeypatch.setattr(embedding, "_LARGE", 1000)
    path = tmp_path / "report.html"
    path.write_text(report_page.render(data))
    assert path.read_text() == report_page.render(data), "the same data give the same page, byte for byte"
    assert 'data-packed="gzip"' in path.read_text()
    assert path.stat().st_size < plain
    return path


def test_a_packed_page_shows_what_it_would_otherwise(opened: Open, packed: Path) -> None:
    page = opened(packed)
    expect(page.locator(".card")).to_contain_text("web.service does not leak (30 hosts)")
    expect(page.locator("#healthy")).to_contain_text("29 hosts without a leak")
    assert "RSS" in page.locator("#memory tr th").all_inner_texts()


def test_a_browser_that_cannot_unpack_says_so(browser: Browser, packed: Path) -> None:
    page = browser.new_page()
    page.add_init_script("delete globalThis.DecompressionStream")
    page.goto(packed.as_uri())
    expect(page.locator("#report")).to_contain_text("This browser cannot open a page of this size")
    page.close()
