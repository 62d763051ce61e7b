# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A real Chromium (Debian's package), without a window, and pages opened in it from files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ansible_collections.offheap.profiler.plugins.plugin_utils.report import page as report_page
from ansible_collections.offheap.profiler.tests.browser import fleets

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine (Debian's package chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], dict[str, Any]]], Path]:
    """The page of a fleet, made once."""
    directory = tmp_path_factory.mktemp("pages")

    def make(name: str, fleet: Callable[[], dict[str, Any]]) -> Path:
        path = directory / f"{name}.html"
        if not path.exists():
            path.write_text(report_page.render(fleet()))
        return path

    return make


@pytest.fixture
def opened(browser: Browser, pages: Callable[[str, Callable[[], dict[str, Any]]], Path]) -> Iterator[Open]:
    """Opens a page; at the end there must have been no request but for it, and no complaint."""
    complaints: list[str] = []
    contexts = []

    def open_page(
        path: Path | None = None, at: str = "", width: int = 1440, scheme: str = "light", height: int = 900
    ) -> Page:
        path = path or pages("fleet", lambda: fleets.fleet(hosts=9, leaking=3, dumps=24))
        colours: Literal["light", "dark"] = "dark" if scheme == "dark" else "light"
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.split("#")[0] == path.as_uri() or request.url == "data:,"
                else complaints.append(request.url)
            ),
        )
        page.goto(f"{path.as_uri()}#{at}")
        page.wait_for_selector(".card, .verdict")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
