#!/usr/bin/env python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Take the pictures of docs/report.md, from a report on the fleet that the browser tests make.

tests/browser/screenshots.py DIRECTORY
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

from ansible_collections.offheap.profiler.plugins.plugin_utils.report import page as report_page
from ansible_collections.offheap.profiler.tests.browser import fleets

# Widths of a phone, a half screen and a screen.
WIDTHS: tuple[tuple[int, Literal["light", "dark"]], ...] = ((360, "dark"), (900, "light"), (1440, "light"))


def main(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        report = Path(made) / "report.html"
        report.write_text(report_page.render(fleets.fleet(hosts=9, leaking=3, dumps=24)))
        # Grey edges of letters make small files.
        flags = ["--no-sandbox", "--disable-gpu", "--disable-lcd-text"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for width, scheme in WIDTHS:
            page = _open(browser, report, width, scheme)
            page.screenshot(path=directory / f"report_{width}_{scheme}.png")
        page = _open(browser, report, 1440, "light")
        page.locator("#growth label", has_text="All hosts").click()
        page.locator("#growth").screenshot(path=directory / "report_hosts.png")
        page.locator(".functions button", has_text="Frontend.serveAsset").click()
        page.locator("#stacks").screenshot(path=directory / "report_callers.png")
        page = _open(browser, report, 1440, "light")
        page.keyboard.press("w")
        page.locator("label", has_text="Live").click()
        page.locator("#fold").check()
        page.locator("#calls").screenshot(path=directory / "report_calls.png")
        page = _open(browser, report, 1440, "dark")
        page.locator("label", has_text="From malloc").click()
        page.locator("#fold").check()
        page.locator("#search").fill("^Frontend")
        page.locator("#stacks").screenshot(path=directory / "report_grown.png")
        browser.close()


def _open(browser: Browser, report: Path, width: int, scheme: Literal["light", "dark"]) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("#plot canvas")
    return page


if __name__ == "__main__":
    main(Path(sys.argv[1]))
