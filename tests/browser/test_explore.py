# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What one does after the first look: the table of functions, search, libraries folded, marks, all hosts, help."""

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
NAME = "td:last-child button"


def _rows(page: Page) -> list[list[str]]:
    """The cells of the table of functions, in the order of its columns."""
    found: list[list[str]] = page.locator(".functions tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(cell => (cell.querySelector('button') || cell).textContent))"
    )
    return found


def _size(text: str) -> float:
    number, unit = text.split()
    return float(number) * 1024.0 ** ["B", "KiB", "MiB", "GiB"].index(unit)


def test_the_function_that_leaks_is_on_top_of_the_table(opened: Open) -> None:
    page = opened()
    assert page.locator(".functions th").all_inner_texts() == [
        "flat",
        "flat%",
        "growth ▾",
        "cum",
        "cum%",
        "growth",
        "function",
    ]
    rows = _rows(page)
    assert [row[-1] for row in rows[:2]] == ["inflate", "inflateInit2_"]
    flat, share, growth, cum, _share, cum_growth = rows[0][:6]
    assert (flat, growth) == (cum, cum_growth) and growth.startswith("+") and share.endswith(" %")
    assert "more" in str(page.locator(".functions tbody tr").first.locator("td").nth(2).get_attribute("class"))


def test_the_table_is_sorted_by_a_click_on_a_column(opened: Open) -> None:
    page = opened(at="base=none")
    assert page.locator(".functions th").all_inner_texts() == ["flat ▾", "flat%", "cum", "cum%", "function"]
    for column, cell in (("flat", 0), ("cum", 2)):
        page.locator(".functions th button", has_text=column).first.click()
        expect(page.locator(".functions th[aria-sort]")).to_contain_text(column)
        sizes = [_size(row[cell]) for row in _rows(page)]
        assert sizes == sorted(sizes, reverse=True)
    assert (_rows(page)[0][-1], _rows(page)[0][3]) == ("start_thread", "100.0 %")
    page.locator(".functions th button", has_text="function").press("Enter")
    expect(page).to_have_url(re.compile("sort=name"))
    names = [row[-1].lower() for row in _rows(page)]
    assert names[0] < names[-1]


def test_a_recursive_function_counts_once(opened: Open, pages: Pages) -> None:
    page = opened(pages("recursive", fleets.recursive), at="base=none")
    assert {row[-1]: row[2:4] for row in _rows(page)}["walk"] == ["24.0 MiB", "100.0 %"]


def test_a_function_of_the_table_leads_to_its_callers(opened: Open) -> None:
    page = opened()
    page.locator(f".functions {NAME}", has_text=re.compile("^inflate$")).click()
    expect(page.locator("#above")).to_have_text("Callers of inflate")


def test_search_takes_a_regular_expression(opened: Open) -> None:
    page = opened(at="base=none")
    page.locator("#search").fill("^Frontend\\.(unpack|serve)")
    expect(page.locator("#found")).to_have_text(re.compile(r"^\d+ frames, \d+\.\d MiB, \d+\.\d %$"))
    assert {row[-1] for row in _rows(page)} == {"Frontend.unpack", "Frontend.serveAsset"}
    page.locator("#search").fill("LIBZ\\.so")
    assert {row[-1] for row in _rows(page)} == {"inflate", "inflateInit2_"}


@pytest.mark.parametrize("wanted", ["Filter$Chain", "GZIPInputStream.<init>"])
def test_a_name_is_found_as_it_stands(opened: Open, wanted: str) -> None:
    page = opened(at="base=none")
    page.locator("#search").fill(wanted)
    assert all(wanted in row[-1] for row in _rows(page)) and _rows(page)


def test_what_is_no_regular_expression_is_said_and_searched_as_text(opened: Open) -> None:
    page = opened(at="base=none")
    page.locator("#search").fill("inflate(")
    expect(page.locator("#found")).to_have_text(
        "nothing found · not a regular expression (unterminated group), so searched as plain text"
    )
    page.locator("#search").fill("*Inflater")
    expect(page.locator("#found")).to_contain_text("not a regular expression (nothing to repeat)")


def test_searching_moves_nothing(opened: Open) -> None:
    page = opened()
    page.locator("#search").scroll_into_view_if_needed()
    before = [page.locator(name).bounding_box() for name in ("#search", "#reset", "#graph")]
    page.locator("#search").fill("inflate")
    expect(page.locator("#found")).not_to_be_empty()
    assert [page.locator(name).bounding_box() for name in ("#search", "#reset", "#graph")] == before


def test_libraries_are_folded(opened: Open) -> None:
    page = opened(at="base=none")
    rows = page.locator("#graph").evaluate("canvas => canvas.clientHeight")
    page.keyboard.press("f")
    expect(page.locator("#fold")).to_be_checked()
    assert page.locator("#graph").evaluate("canvas => canvas.clientHeight") < rows - 4 * 21
    found = {row[-1]: row for row in _rows(page)}
    own = {"Frontend.unpack", "Frontend.serveAsset", "Frontend.handleRequest", "AssetCache.put"}
    assert own < set(found)
    assert {"[libz.so.1]", "[libjvm.so]", "[libc.so.6]", "[Java's own]"} < set(found)
    assert not {"inflate", "start_thread", "java.lang.Thread.run"} & set(found)
    assert found["[libc.so.6]"][3] == "100.0 %"
    bold = page.locator(".functions .own").all_inner_texts()
    assert own < set(bold) and not any(name.startswith("[") for name in bold)
    page.locator("#fold").uncheck()
    assert "inflate" in {row[-1] for row in _rows(page)}


def test_a_stub_of_the_jvm_is_not_own_code(opened: Open, pages: Pages) -> None:
    def known() -> dict[str, Any]:
        data = fleets.fleet(hosts=2, leaking=1, dumps=6)
        at = data["frames"]["name"].index("JavaCalls::call_helper")
        for column, value in (("name", "StubRoutines (1)"), ("module", ""), ("kind", "jit")):
            data["frames"][column][at] = value
        return data

    page = opened(pages("stub", known), at="base=none")
    row = page.locator(".functions button", has_text="StubRoutines (1)")
    expect(row).to_be_visible()
    assert "own" not in (row.get_attribute("class") or "").split()
    page.locator("#fold").check()
    expect(page.locator(".functions tbody")).to_contain_text("[made at run time]")


def test_restarts_versions_and_triggers_are_marked(opened: Open, pages: Pages) -> None:
    page = opened()
    expect(page.locator("#marks li")).to_have_text(
        re.compile(r"^Tue 2026-11-17 23:20 UTC restart into version 4\.2\.0")
    )
    page = opened(pages("marked", fleets.marked))
    marks = page.locator("#marks li")
    expect(marks).to_have_count(2)
    expect(marks.nth(0)).to_have_text(re.compile("UTC restart$"))
    expect(marks.nth(1)).to_have_text(re.compile("dump, triggered: rss grew by 64 MiB$"))
    assert marks.nth(1).get_attribute("class") == "trigger"


def _colours(page: Page, canvas: str) -> set[str]:
    """The opaque colours of a chart's pixels."""
    found: list[str] = page.evaluate(
        """selector => {
            const canvas = document.querySelector(selector);
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const seen = new Set();
            for (let at = 0; at < pixels.length; at += 4)
                if (pixels[at + 3] === 255) seen.add([...pixels.slice(at, at + 3)].join());
            return [...seen];
        }""",
        canvas,
    )
    return set(found)


def test_all_hosts_are_in_one_chart(opened: Open) -> None:
    page = opened()
    page.locator("#growth label", has_text="All hosts").click()
    expect(page.locator("#growth h2")).to_have_text("Live memory on 9 hosts")
    expect(page.locator("#readout")).to_contain_text(re.compile(r"app\d\d \d+\.\d MiB live, \d+\.\d MiB/day"))
    accent = "47,111,222"
    assert accent in _colours(page, "#hostsplot canvas")
    before = page.inner_text("#stacks h2")
    chart = page.locator("#hostsplot .u-over")
    box = chart.bounding_box()
    assert box is not None
    # At the end, a healthy host lies at about half the height of the leaking ones.
    for part in (0.45, 0.5, 0.55, 0.6):
        chart.hover(position={"x": box["width"] - 12, "y": box["height"] * part})
        if "no leak" in page.inner_text("#readout"):
            break
    expect(page.locator("#readout")).to_contain_text("no leak")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("#stacks h2")).not_to_have_text(before)
    expect(page.locator("#hosts button[aria-pressed=true]")).to_contain_text("No leak")
    page.locator("#growth label", has_text="This host").click()
    expect(page.locator("#hostsplot")).to_be_hidden()
    page.locator(".card", has_text="mailer").click()
    expect(page.locator("#growth .views")).to_be_hidden()


def test_help_opens_and_closes_with_the_keyboard(opened: Open) -> None:
    page = opened()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    expect(page.locator("#help")).to_contain_text("search: a regular expression")
    page.keyboard.press("g")
    assert "what=" not in page.url
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.locator(".help").click()
    page.locator("#help button").press("Enter")
    expect(page.locator("#help")).to_be_hidden()
