# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What somebody sees who has no time: on a small fleet, on 200 hosts, and on a small leak in a large heap."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from ansible_collections.offheap.profiler.plugins.plugin_utils.views.compare import By, Change, Side, compare
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Measure
from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.colours import share
from ansible_collections.offheap.profiler.tests.browser.conftest import Open
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

Pages = Callable[[str, Callable[[], dict[str, Any]]], Path]
ARCHIVES: dict[str, Callable[[], dict[str, Any]]] = {
    "fleet": partial(fleets.fleet, hosts=9, leaking=3, dumps=24),
    "200-hosts": partial(fleets.fleet, hosts=200, leaking=60, dumps=24),
    "small-leak": fleets.small_leak,
}
SCREENS = {1440: 900, 360: 780}
EACH = [(1440, "light"), (360, "dark")]
ANSWER = re.compile(
    r"^(?P<unit>\S+\.service) leaks (?P<rate>\d+\.\d MiB ± \d+\.\d MiB( to \d+\.\d MiB ± \d+\.\d MiB)? a day)"
    r" on (?P<count>\d+ of \d+ hosts?) \((?P<hosts>[\w, ]+)\),"
    r" (since about|ever since the watch began,) \w{3} \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    r"\+\d+\.\d MiB( to \+\d+\.\d MiB)? in the [\d.]+ \w+ watched$"
)


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest, pages: Pages) -> Path:
    return pages(request.param, ARCHIVES[request.param])


def _is_on_screen(page: Page, part: Locator) -> bool:
    box, size = part.bounding_box(), page.viewport_size
    assert box is not None and size is not None
    inside = box["x"] >= 0 and box["x"] + box["width"] <= size["width"]
    return inside and box["y"] >= 0 and box["y"] + box["height"] <= size["height"]


@pytest.mark.parametrize(("width", "scheme"), EACH)
def test_the_first_screen_answers(opened: Open, archive: Path, width: int, scheme: str) -> None:
    """Which unit, how fast and how surely, since when, which code, which hosts."""
    page = opened(archive, width=width, height=SCREENS[width], scheme=scheme)
    sentence = page.locator(".card.leak .sentence")
    found = ANSWER.match(sentence.text_content() or "")
    assert found, sentence.text_content()
    assert _is_on_screen(page, sentence)
    code = page.locator(".card.leak .path").first
    expect(code).to_contain_text(re.compile("^(inflate ← java.util.zip|sessions_new ← accept)"))
    assert _is_on_screen(page, code)
    leaking = page.evaluate("JSON.parse(data.textContent).units[0].hosts.filter(one => one.answer === 'leak')")
    count = int(found["count"].split()[0])
    assert len(leaking) == count
    named = found["hosts"].split(" and ")[0].split(", ")
    assert named == [host["host"] for host in leaking][:3]
    assert ("more" in found["hosts"]) == (count > 3)


def test_no_date_is_broken(opened: Open, archive: Path) -> None:
    page = opened(archive, width=360, height=780)
    heights = page.locator(".unbroken").evaluate_all("all => all.map(one => one.getClientRects().length)")
    assert len(heights) >= 3 and set(heights) == {1}


def test_each_suspect_has_a_curve_that_climbs_with_its_interval(opened: Open, archive: Path) -> None:
    page = opened(archive)
    curves = page.locator("#suspects .sparkline")
    assert curves.count() == page.locator("#suspects li").count() >= 1
    for number in range(curves.count()):
        line, band = (
            curves.nth(number)
            .locator(shape)
            .evaluate("one => one.getAttribute('points').split(' ').map(point => Number(point.split(',')[1]))")
            for shape in ("polyline", "polygon")
        )
        assert line[0] - line[-1] > 0.4 * 34
        assert min(band) < min(line) and max(band) > max(line)


def test_a_suspect_ends_at_the_function_that_allocates(opened: Open, archive: Path) -> None:
    page = opened(archive)
    for suspect in page.locator("#suspects button").all():
        leaf = (suspect.locator(".path").text_content() or "").split(" ← ")[0]
        suspect.click()
        expect(page.locator("#detail")).to_contain_text(
            re.compile(f"^{re.escape(leaf)} · .*100.0 % of it on a suspected")
        )


def test_what_has_grown_is_red_and_nothing_that_stays_is(opened: Open, archive: Path) -> None:
    page = opened(archive)
    expect(page.locator("input[value=grown]")).to_be_checked()
    assert share(page, "fresh") == 0
    page.keyboard.press("i")
    page.locator("#graph").hover(position={"x": 500, "y": 21 * 1.5})
    expect(page.locator("#tip .name")).to_have_text(re.compile("^(inflate|sessions_new)$"))
    expect(page.locator("#tip .grown")).not_to_contain_text("sampling explains")


def test_an_earlier_dump_is_compared_with_a_still_earlier_one_or_none(opened: Open, archive: Path) -> None:
    page = opened(archive)
    count = int(page.locator("#slider").get_attribute("max") or "")
    page.locator("#slider").fill(str(count - 1))
    expect(page.locator("#detail")).to_contain_text(re.compile(r"\+\d+\.\d MiB since"))
    expect(page.locator("#legend")).to_contain_text(re.compile(r"\(older\) to .* \(newer\)"))
    page.locator("#slider").fill("0")
    assert page.locator("#base").input_value() == "none"
    expect(page.locator("#legend")).not_to_contain_text("shrunk")


def test_the_memory_that_is_resident_is_explained(opened: Open, archive: Path) -> None:
    page = opened(archive)
    rows = page.locator("#memory tr th").all_inner_texts()
    assert rows[0] == "RSS" and "Live, sampled" in rows
    ends = page.locator("#memory .fall").evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
    assert abs(ends[0] - ends[-1]) < 2


@pytest.mark.parametrize("name", ["fleet", "200-hosts"])
def test_hosts_that_do_not_leak_and_hosts_alike_are_grey(opened: Open, pages: Pages, name: str) -> None:
    page = opened(pages(name, ARCHIVES[name]))
    others = page.locator("#base optgroup[label='Another host, newest dump'] option", has_text="(leak)")
    page.locator("#base").select_option(others.first.get_attribute("value"))
    page.locator("label", has_text="Live").click()
    expect(page.locator("#detail")).to_contain_text(re.compile("against app[0-9]+, .* there"))
    assert share(page, "fresh") == 0
    if name == "200-hosts":
        page.locator("#healthy button").click()
    page.locator("#hosts button", has_text="No leak").first.click()
    page.locator("#base optgroup[label='Another time'] option").nth(14).evaluate("one => (one.selected = true)")
    page.locator("#base").dispatch_event("change")
    assert share(page, "same") > 0.6


def test_what_is_called_grown_is_what_heap_compare_calls_so(opened: Open, pages: Pages) -> None:
    page = opened(pages("two-times", fleets.two_times))
    before, after = (Side(profile(stacks)) for stacks in fleets.TWO_TIMES)
    found = compare(before, after, measure=Measure.INUSE_SPACE, by=By.FUNCTIONS).differences
    wanted = {one.path[0]: one.change for one in found}
    words = {"more": {Change.GROWN, Change.NEW}, "less": {Change.SHRUNK, Change.GONE}, "same": {Change.NOT_SIGNIFICANT}}
    rows = page.locator(".functions tbody tr").all()
    shown = {
        row.locator("button").inner_text(): (row.locator("td").nth(5).get_attribute("class") or "") for row in rows
    }
    assert set(shown) == set(wanted)
    for name, classes in shown.items():
        assert wanted[name] in words[classes.split()[-1]], name


def test_of_profiles_sampled_nobody_knows_how_no_change_is_called_sure(opened: Open, pages: Pages) -> None:
    page = opened(pages("sampled-somehow", fleets.sampled_somehow))
    expect(page.locator("#detail")).to_contain_text("± unknown live")
    expect(page.locator("#fineprint")).to_contain_text("Nobody knows how these sizes were sampled")
    assert page.locator(".functions td.same").count() and not page.locator(".functions td.more").count()
    expect(page.locator("#readout")).to_contain_text("Live, sampled 162.6 MiB")


def test_a_tap_leaves_no_tooltip(opened: Open) -> None:
    page = opened()
    page.locator("#graph").hover(position={"x": 12, "y": 60})
    expect(page.locator("#tip")).to_be_visible()
    page.locator("#graph").click(position={"x": 12, "y": 60})
    expect(page.locator("#tip")).to_be_hidden()


def test_what_it_is_compared_with_is_not_cut(opened: Open) -> None:
    page = opened()
    needed, there = page.locator("#base").evaluate(
        """select => {
            const probe = document.createElement("span");
            probe.style.cssText = "position: absolute; white-space: nowrap; visibility: hidden";
            probe.style.font = getComputedStyle(select).font;
            probe.textContent = select.selectedOptions[0].textContent;
            document.body.append(probe);
            const found = [probe.getBoundingClientRect().width, select.clientWidth];
            probe.remove();
            return found;
        }"""
    )
    assert needed + 30 < there


def test_a_hint_has_a_link_that_can_be_followed(opened: Open) -> None:
    page = opened()
    link = page.locator("#suspects a").first
    assert (link.get_attribute("href") or "").startswith("https://")
    assert page.locator("#suspects button a").count() == 0


def test_a_nameless_thread_and_an_unlabelled_build_are_called_what_they_are(opened: Open, pages: Pages) -> None:
    page = opened(pages("unnamed", fleets.unnamed))
    expect(page.locator("#growth h2")).to_contain_text("build 0123456789ab")
    expect(page.locator("#growth h2")).not_to_contain_text("version")
    page.locator("#threads button", has_text="thread 0").click()
    expect(page.locator("#stacks h2")).to_have_text("Stacks on tree1, thread 0")
