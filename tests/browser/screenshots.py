#!/usr/bin/env python
# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Take the pictures of docs/report.md from a report.

tests/browser/screenshots.py REPORT.html DIRECTORY
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

# Widths of a phone, a half screen and a screen.
WIDTHS: tuple[tuple[int, Literal["light", "dark"]], ...] = ((360, "dark"), (900, "light"), (1440, "light"))


def main(report: Path, directory: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width, scheme in WIDTHS:
            page = _open(browser, report, width, scheme)
            page.screenshot(path=directory / f"report_{width}_{scheme}.png", full_page=True)
        page = _open(browser, report, 1440, "light")
        number = page.evaluate("JSON.parse(data.textContent).frames.name.indexOf('Frontend.serveAsset')")
        page.evaluate(f"location.hash = 'around={number + 1}'")
        page.wait_for_selector("#callers")
        page.locator("#stacks").screenshot(path=directory / "report_callers.png")
        page = _open(browser, report, 1440, "dark")
        page.locator("label", has_text="Grown").click()
        page.locator("label", has_text="From malloc").click()
        page.locator("#search").fill("Frontend")
        page.locator("#stacks").screenshot(path=directory / "report_grown.png")
        browser.close()


def _open(browser: Browser, report: Path, width: int, scheme: Literal["light", "dark"]) -> Page:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("#plot canvas")
    return page


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
