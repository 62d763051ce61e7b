# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Where debug information is, a frame has its file and lines, in whichever view, and they are copied with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.conftest import Open

Pages = Callable[[str, Callable[[], dict[str, Any]]], Path]
KEEP, SERVE, MAIN = "/src/shop/keep.c:7, 9", "/src/shop/serve.c:40, 44", "/src/shop/main.c:12"


@pytest.fixture
def shop(opened: Open, pages: Pages) -> Callable[[str], Page]:
    return lambda at: opened(pages("debuggable", fleets.debuggable), at=f"base=none&{at}")


def _found(page: Page, name: str) -> str:
    """What is said of the largest frame with this name."""
    page.locator("#search").fill(f"^{name}$")
    page.locator("#next").click()
    expect(page.locator("#detail")).to_contain_text(re.compile(f"^{name} · "))
    return page.locator("#detail span").first.inner_text()


@pytest.mark.parametrize("view", ["", "from=leaf", "from=calls", "fold=1", "hide=inflateInit2_"])
def test_a_frame_has_its_lines_in_each_view(shop: Callable[[str], Page], view: str) -> None:
    page = shop(view)
    for name, source in (("keep", KEEP), ("serve", SERVE), ("main", MAIN), ("render", "/src/shop/render.py")):
        assert f" · app · {source} · " in _found(page, name)


@pytest.mark.parametrize("view", ["", "from=calls"])
def test_without_debug_information_there_is_no_line(shop: Callable[[str], Page], view: str) -> None:
    assert re.match(r"inflateInit2_ · libz\.so\.1 · 10\.0 MiB ±", _found(shop(view), "inflateInit2_"))


def test_what_is_in_a_folded_library_has_no_line(shop: Callable[[str], Page]) -> None:
    page = shop("fold=1")
    page.locator("#search").fill("libz")
    page.locator("#next").click()
    expect(page.locator("#detail")).to_contain_text("[libz.so.1] · libz.so.1 · 10.0 MiB")


def test_callers_and_callees_have_their_lines(shop: Callable[[str], Page]) -> None:
    page = shop("")
    _found(page, "serve")
    page.locator("#detail button", has_text="Callers and callees").click()
    page.locator("#search").fill("")
    expect(page.locator("#detail")).to_contain_text(SERVE)
    for canvas, source in (("#callers", MAIN), ("#graph", KEEP)):
        page.locator(canvas).hover(position={"x": 12, "y": 21 * 1.5})
        expect(page.locator("#tip")).to_contain_text(source)


def test_lines_are_copied_with_the_stack(shop: Callable[[str], Page]) -> None:
    for view in ("", "from=leaf"):
        page = shop(view)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        _found(page, "keep" if not view else "main")
        page.locator("#graph").focus()
        page.keyboard.press("Shift+C")
        expect(page.locator("#found")).to_contain_text("Copied the stack of")
        _about, *frames = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert [line.strip() for line in frames] == [
            f"keep  (app, {KEEP})",
            f"serve  (app, {SERVE})",
            f"main  (app, {MAIN})",
            "__libc_start_main  (libc.so.6)",
        ][: 4 if not view else 3]
