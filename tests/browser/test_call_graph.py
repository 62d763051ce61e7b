# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The call graph: its numbers, what it leaves out, the way through it by mouse and keys, its look, and its picture."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.conftest import Open
from ansible_collections.offheap.profiler.tests.browser.test_accessible import serious

Pages = Callable[[str, Callable[[], dict[str, Any]]], Path]
SVG = "{http://www.w3.org/2000/svg}"
LIVE = "from=calls&base=none"


def _boxes(page: Page) -> dict[str, dict[str, Any]]:
    """By function: its two sizes in words, the size of its letters, and its number."""
    found: list[dict[str, Any]] = page.locator("#calls [data-function]").evaluate_all(
        """all => all.map(one => ({
            lines: [...one.querySelectorAll("text")].map(line => line.textContent),
            letters: Number(one.querySelector("text").getAttribute("font-size")),
            number: one.dataset.function,
        }))"""
    )
    return {"".join(one["lines"][:-2]): {**one, "flat": one["lines"][-2], "cum": one["lines"][-1]} for one in found}


def _calls(page: Page) -> dict[tuple[str, str], float]:
    """By caller and callee: how thick the arrow is."""
    names = {box["number"]: name for name, box in _boxes(page).items()}
    found: list[tuple[str, float]] = page.locator("#calls [data-call]").evaluate_all(
        "all => all.map(one => [one.dataset.call, Number(one.firstChild.getAttribute('stroke-width'))])"
    )
    return {(names[call.split()[0]], names[call.split()[1]]): thick for call, thick in found}


def _held(page: Page) -> tuple[Counter[str], Counter[str], Counter[tuple[str, str]]]:
    """Flat and cum by function and what goes through each call, in MiB, from the newest dump in the page's data."""
    data = page.evaluate("JSON.parse(data.textContent)")
    unit, names = data["units"][0], data["frames"]["name"]
    parents, frames, dump = unit["tree"]["parent"], unit["tree"]["frame"], unit["hosts"][0]["dumps"][-1]
    flat, cum, calls = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    node = 0
    for step, size in zip(dump["nodes"], dump["bytes"], strict=True):
        node += step
        path, at = [], node
        while at:
            path.append(names[frames[at]])
            at -= parents[at]
        path.reverse()
        flat[path[-1]] += size / fleets.MIB
        cum.update({name: size / fleets.MIB for name in set(path)})
        calls.update({call: size / fleets.MIB for call in itertools.pairwise(path)})
    return flat, cum, calls


def test_functions_and_calls_hold_what_the_dump_holds(opened: Open) -> None:
    page = opened(at=LIVE)
    flat, cum, calls = _held(page)
    boxes = _boxes(page)
    assert set(boxes) == {name for name, size in cum.items() if size > 0.005 * sum(flat.values())}
    for name, box in boxes.items():
        assert box["cum"].startswith(f"cum {cum[name]:.1f} MiB, "), name
        assert box["flat"].startswith(f"flat {flat[name]:.1f} MiB, " if flat[name] else "flat 0 B"), name
    letters = {name: box["letters"] for name, box in boxes.items()}
    assert sorted(letters, key=lambda name: (-letters[name], name))[:3] == ["os::malloc", "inflate", "inflateInit2_"]
    drawn = _calls(page)
    assert set(drawn) == set(calls)
    by_size = sorted(drawn, key=lambda call: calls[call])
    assert [drawn[call] for call in by_size] == sorted(drawn.values()), "the more goes through, the thicker"
    said = Counter(page.locator("#calls svg > text").all_text_contents())
    assert said == Counter(f"{size:.1f} MiB" for size in calls.values())


def test_a_function_that_calls_itself_counts_once(opened: Open, pages: Pages) -> None:
    page = opened(pages("recursive", fleets.recursive), at=LIVE)
    assert {name: box["cum"] for name, box in _boxes(page).items()} == {
        "main": "cum 24.0 MiB, 100.0 %",
        "walk": "cum 24.0 MiB, 100.0 %",
    }
    assert set(_calls(page)) == {("main", "walk"), ("walk", "walk")}
    assert sorted(page.locator("#calls svg > text").all_text_contents()) == ["16.0 MiB", "24.0 MiB"]


def test_what_is_left_out_is_counted_and_what_leads_through_it_is_dashed(opened: Open, pages: Pages) -> None:
    page = opened(pages("large-2000", lambda: fleets.large(2000)), at=LIVE)
    _flat, cum, _calls_held = _held(page)
    shown = len(_boxes(page))
    assert 20 < shown <= 80
    left = re.search(
        r"^(\d+) functions, \d+ calls\. Left out as too small: (\d+) functions, none with more than (\d+\.\d MiB);",
        page.inner_text("#left"),
    )
    assert left and (int(left[1]), int(left[2])) == (shown, len(cum) - shown)
    assert left[3] == f"{sorted(cum.values(), reverse=True)[shown]:.1f} MiB"
    page = opened(pages("fleet-of-9", lambda: fleets.fleet(hosts=9, leaking=3, dumps=24)), at="from=calls")
    dashed = page.locator("#calls [data-call]", has=page.locator("path[stroke-dasharray]"))
    assert dashed.count() == 2
    expect(page.locator("#left")).to_contain_text("A dashed arrow leads through functions that are left out.")


def test_the_keyboard_leads_to_the_graph_and_through_it(opened: Open) -> None:
    page = opened(at="base=none")
    page.keyboard.press("w")
    expect(page).to_have_url(re.compile("from=calls"))
    expect(page.locator("#graph")).to_be_hidden()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#calls")).to_be_focused()
    for key, name in (
        ("ArrowDown", "thread_native_entry"),
        ("ArrowDown", "JavaCalls::call_helper"),
        ("ArrowUp", "thread_native_entry"),
        ("ArrowLeft", "JavaMain"),
        ("ArrowRight", "thread_native_entry"),
    ):
        page.keyboard.press(key)
        expect(page.locator("#detail")).to_contain_text(re.compile(f"^{name} · .* flat"))
        box = page.locator("#calls [data-function]", has=page.locator("[stroke-width='3']"))
        expect(box).to_contain_text(name)
        expect(box).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("zoom="))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("zoom="))
    page.keyboard.press("w")
    expect(page.locator("#calls")).to_be_hidden()
    expect(page.locator("#graph")).to_be_visible()


def test_the_stacks_through_a_function_alone_and_without_one(opened: Open) -> None:
    page = opened(at=LIVE)
    page.locator("#calls [data-function]", has_text="AssetCache.put").click()
    page.locator("#detail button", has_text="Callers and callees").click()
    expect(page.locator("#above")).to_have_text("Stacks through AssetCache.put")
    boxes = _boxes(page)
    assert "inflate" not in boxes and {"start_thread", "AssetCache.put", "os::malloc"} < set(boxes)
    assert len({box["cum"] for name, box in boxes.items()}) == 1, "one way through it"
    same = opened(at=page.url.partition("#")[2])
    assert _boxes(same) == boxes
    page.keyboard.press("Escape")
    page.locator("#calls [data-function]", has_text="AssetCache.put").click(modifiers=["Alt"])
    expect(page.locator("#hiding")).to_contain_text("all stacks through AssetCache.put")
    assert "AssetCache.put" not in _boxes(page) and "inflate" in _boxes(page)


def test_a_search_is_marked_and_stepped_through(opened: Open) -> None:
    page = opened(at=LIVE)
    page.locator("#search").fill("Inflater")
    marked = page.locator("#calls rect[fill='#ffe14d']").count()
    assert 2 < marked < len(_boxes(page))
    page.locator("#next").click()
    expect(page.locator("#nth")).to_have_text(f"1 of {marked}")
    expect(page.locator("#detail")).to_contain_text("Inflater")
    assert page.locator("#detail button", has_text="Copy stack").count() == 0, "a function is in many"


def test_it_follows_time_comparison_and_folding(opened: Open) -> None:
    page = opened(at=LIVE)
    before = _boxes(page)
    page.keyboard.press(",")
    assert _boxes(page) != before
    page = opened(at="from=calls")
    assert "AssetCache.put" not in _boxes(page), "it has not grown"
    page.keyboard.press("f")
    assert "[libz.so.1]" in _boxes(page)
    page.locator("label", has_text="Shrunk").click()
    assert "inflate" not in _boxes(page)


@pytest.mark.parametrize("width", [1440, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_any_screen_and_on_paper(opened: Open, width: int, scheme: str) -> None:
    page = opened(at=LIVE, width=width, scheme=scheme)
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(_boxes(page)) == (43 if width > 640 else 24), "fewer on a phone"
    letters = page.locator("#calls text").first.evaluate("one => one.getBoundingClientRect().height")
    assert letters > 10
    page.set_viewport_size({"width": 1800 - width, "height": 900})
    expect(page.locator("#left")).to_contain_text(f"{24 if width > 640 else 43} functions, ")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 at 96 dots an inch
    assert len(_boxes(page)) == 24
    assert page.locator("#calls text").first.evaluate("one => one.getBoundingClientRect().height") > 7
    assert page.locator("#calls text").first.get_attribute("fill") == "#16181b"
    inside = page.evaluate("calls.querySelector('svg').getBoundingClientRect().right <= innerWidth")
    assert inside and page.evaluate("getComputedStyle(calls).overflowX") == "visible"


def test_it_is_saved_as_a_picture_and_names_stay_text(opened: Open, pages: Pages) -> None:
    page = opened(pages("hostile", fleets.hostile), at=LIVE)
    with page.expect_download() as download:
        page.locator("#savesvg").click()
    svg = ET.fromstring(Path(download.value.path()).read_text())
    assert {element.tag for element in svg.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "rect", "g", "text", "path")
    }
    boxes = [one for one in svg.findall(f"{SVG}g") if "data-function" in one.attrib]
    assert any("<img src=x" in (box.findtext(f"{SVG}title") or "") for box in boxes)
    assert "functions, " in (svg.findtext(f"{SVG}title") or "")
    assert page.title() != "pwned"
    with page.expect_download() as download:
        page.locator("#savefolded").click()
    assert Path(download.value.path()).read_text().startswith("main;")


def test_where_nothing_is_there_is_no_graph(opened: Open) -> None:
    page = opened(at="from=calls&base=none&hide=start_thread")
    expect(page.locator("#calls")).to_be_hidden()
    expect(page.locator("#empty")).to_be_visible()
