# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The fleet's page as a person uses it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.scope import Scope
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import host_report, ticket
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import page as report_page
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.fleet import Fleet
from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.colours import share
from ansible_collections.offheap.profiler.tests.browser.conftest import Open
from ansible_collections.offheap.profiler.tests.browser.test_accessible import serious
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

ROOT = Path(report_page.__file__).resolve().parents[3]
ROW = 21
Pages = Callable[[str, Callable[[], dict[str, Any]]], Path]


def _picture(page: Page, canvas: str = "#graph") -> str:
    return str(page.evaluate(f"document.querySelector('{canvas}').toDataURL()"))


def _frame(page: Page, row: int, canvas: str = "#graph", x: float = 12) -> None:
    page.locator(canvas).click(position={"x": x, "y": row * ROW + ROW / 2})


def test_the_summary_says_what_leaks_where_since_when(opened: Open) -> None:
    page = opened()
    first = page.locator(".card").first
    expect(first).to_contain_text(
        re.compile(
            r"frontend\.service leaks (\d+\.\d MiB ± \d+\.\d MiB) to (?!\1)\d+\.\d MiB ± \d+\.\d MiB a day"
            r" on 3 of 9 hosts \(app08, app02, app05\), since about \w{3} 2026"
        )
    )
    expect(first).to_contain_text(re.compile(r"\+\d+\.\d MiB to \+\d+\.\d MiB in the \d+ hours watched"))
    watched = re.search(r"\+([\d.]+) MiB to \+([\d.]+) MiB in", first.inner_text())
    unit = page.evaluate("JSON.parse(data.textContent).units[0]")
    rates = [one["growth"] / fleets.MIB for one in unit["hosts"] if one["answer"] == "leak"]
    days = 15 * fleets.STEP / 86400  # the new version was watched for 16 dumps
    assert watched and [*map(float, watched.groups())] == pytest.approx(
        [min(rates) * days, max(rates) * days], abs=0.06
    )
    expect(first).to_contain_text("inflate ← java.util.zip.Inflater.inflateBytesBytes ← ")
    expect(page.locator(".card.no-leak")).to_contain_text("edge-proxy.service does not leak (3 hosts)")
    # What one host has found, such as what may stay at most, is not said of all.
    expect(page.locator(".card.no-leak .reason")).to_have_text(re.compile(r"on \S+: "))
    expect(page.locator("#suspects li").first).to_contain_text("% of the growth")


def test_units_and_hosts_are_chosen_and_the_way_back_works(opened: Open) -> None:
    page = opened()
    page.locator(".card.no-leak").click()
    expect(page.locator("#growth h2")).to_contain_text("Growth on edge")
    first = page.inner_text("#growth h2")
    page.locator("#hosts button").last.click()
    expect(page.locator("#growth h2")).not_to_have_text(first)
    page.go_back()
    expect(page.locator("#growth h2")).to_contain_text("/usr/sbin/edge-proxy")
    assert page.inner_text("#growth h2") == first
    page.go_back()
    expect(page.locator("#growth h2")).to_contain_text("Growth on app")


def test_moving_in_time_changes_the_graph_and_the_waterfall(opened: Open) -> None:
    page = opened(at="base=none")
    before, when, live = _picture(page), page.inner_text("#when"), page.inner_text("#memory tr:nth-child(2)")
    page.locator("#slider").focus()
    for _key in range(6):
        page.keyboard.press("ArrowLeft")
    assert page.inner_text("#when") != when
    assert _picture(page) != before
    assert page.inner_text("#memory tr:nth-child(2)") != live
    page.locator("#plot .u-over").click(position={"x": 3, "y": 40})
    expect(page.locator("#earlier")).to_be_disabled()


def test_comparing_with_a_time_a_host_and_a_version(opened: Open) -> None:
    page = opened()
    expect(page.locator("#legend")).to_contain_text("grown")
    expect(page.locator("#detail")).to_contain_text(re.compile(r"\+\d+\.\d MiB since"))
    expect(page.locator("#legend")).to_contain_text(re.compile(r"from .* \(older\) to .* \(newer\)"))
    groups = page.locator("#base optgroup").evaluate_all("all => all.map(one => one.label)")
    assert groups == ["Another time", "Another host, newest dump", "Another version"]
    seen = {_picture(page)}
    for group in groups:
        value = page.locator(f"#base optgroup[label='{group}'] option").last.get_attribute("value")
        page.locator("#base").select_option(value)
        seen.add(_picture(page))
    assert len(seen) >= 3
    page.locator("#base").select_option("none")
    expect(page.locator("#legend")).to_contain_text("suspected")
    expect(page.locator("input[value=grown]")).to_be_disabled()


def test_hosts_with_the_same_leak_differ_by_nothing_new(opened: Open, pages: Pages) -> None:
    """Functions are matched by name: the same code in another build of a library is not new."""
    page = opened(pages("two-distributions", fleets.two_distributions))
    options = page.locator("#base optgroup[label='Another host, newest dump'] option")
    page.locator("#base").select_option(options.first.get_attribute("value"))
    page.locator("label", has_text="Live").click()
    expect(page.locator("#detail")).to_contain_text(re.compile("against [a-z]+[0-9], .* there"))
    expect(page.locator("#legend")).to_contain_text("less here")
    assert share(page, "fresh") == 0
    assert share(page, "same") > 0.6


def test_a_host_without_a_leak_is_compared_with_nothing_unless_asked(opened: Open) -> None:
    page = opened()
    page.locator("#hosts button", has_text="No leak").first.click()
    assert page.locator("#base").input_value() == "none"
    expect(page.locator("#legend")).not_to_contain_text("grown")
    page.locator("#base optgroup[label='Another time'] option").nth(14).evaluate("one => (one.selected = true)")
    page.locator("#base").dispatch_event("change")
    assert share(page, "same") > 0.6
    expect(page.locator("#detail")).to_contain_text("no more than sampling explains")


def test_nothing_is_compared_with_a_later_dump_unless_asked(opened: Open) -> None:
    page = opened()
    page.locator("#slider").fill("0")
    assert page.locator("#base").input_value() == "none"
    page.locator("#base optgroup[label='Another time'] option").last.evaluate("one => (one.selected = true)")
    page.locator("#base").dispatch_event("change")
    expect(page.locator("#detail")).to_contain_text("which is later")
    expect(page.locator("#detail")).to_contain_text(re.compile(r"\+\d+\.\d MiB until"))


def test_the_graph_survives_a_double_click_on_everything(opened: Open) -> None:
    page = opened()
    page.locator("#graph").dblclick(position={"x": 12, "y": ROW / 2})
    expect(page.locator("#empty")).to_be_hidden()
    assert "around" not in page.url


def test_a_small_leak_in_a_large_heap_is_seen_at_once(opened: Open, pages: Pages) -> None:
    page = opened(pages("small-leak", fleets.small_leak))
    curve = page.locator("#suspects .sparkline").first
    expect(curve).to_have_text(re.compile(r"^2\.0 MiB → 1\d\d\.\d MiB$"))
    heights = curve.locator("polyline").evaluate(
        "line => line.getAttribute('points').split(' ').map(point => Number(point.split(',')[1]))"
    )
    assert heights[0] - heights[-1] > 0.6 * 34
    expect(page.locator("input[value=grown]")).to_be_checked()
    page.locator("#graph").hover(position={"x": 12, "y": ROW * 3.5})
    expect(page.locator("#tip")).to_contain_text("sessions_new")


def test_no_leak_is_said_with_its_limit_on_the_host_s_button(opened: Open) -> None:
    healthy = opened().locator("#hostlist button.no-leak").first
    expect(healthy).to_contain_text(re.compile(r"No leak.*none above [\d.]+ [KMG]iB/day"))


def test_many_hosts_are_found_by_name_and_shown_without_what_all_share(opened: Open, pages: Pages) -> None:
    page = opened(pages("many", fleets.many_hosts))
    names = page.locator("#hostlist .name")
    page.locator("#healthy button").click()
    assert names.count() == 30 and names.first.inner_text() == "web-00.a"
    assert page.locator("#hostlist button").first.get_attribute("title").startswith("web-00.a.example.org: ")  # type: ignore[union-attr]
    page.fill("#hostfilter", "WEB-1")
    assert [name.inner_text() for name in names.all()] == [f"web-1{number}.{'ab'[number % 2]}" for number in range(10)]
    page.fill("#hostfilter", "db")
    expect(page.locator("#healthy")).to_have_text("No host of this name.")
    expect(opened().locator("#hostfilter")).to_be_hidden()


def test_of_many_hosts_those_without_a_leak_are_one_line(opened: Open, pages: Pages) -> None:
    page = opened(pages("30-hosts", lambda: fleets.fleet(hosts=30, leaking=4, dumps=12)))
    expect(page.locator("#hostlist button")).to_have_count(4)
    expect(page.locator("#healthy")).to_have_text(
        re.compile(r"^26 hosts without a leak, none above [\d.]+ [KM]iB/day\. Show them$")
    )
    assert serious(page) == []
    page.fill("#hostfilter", "app03")
    page.locator("#hostlist button").click()
    page.fill("#hostfilter", "")
    expect(page.locator("#hostlist button")).to_have_count(5)  # the chosen one stays
    expect(page.locator("#healthy")).to_contain_text("25 hosts without a leak")
    page.locator("#healthy button").press("Enter")
    expect(page.locator("#hostlist button")).to_have_count(30)
    expect(page.locator("#hostlist button.no-leak").first).to_be_focused()
    expect(page.locator("#healthy")).to_be_empty()


def test_long_names_of_hosts_are_cut_in_the_middle_and_lie_under_nothing(opened: Open, pages: Pages) -> None:
    def long_names() -> dict[str, Any]:
        data = fleets.fleet(hosts=3, leaking=1, dumps=12)
        for number, host in enumerate(data["units"][0]["hosts"]):
            host["host"] = f"production-database-replica-{number:02}.eu-west.example.org"
        return data

    for width in (1440, 360):
        page = opened(pages("long-names", long_names), width=width)
        for number, name in enumerate(page.locator("#hostlist .name").all()):
            expect(name).to_have_text(f"production-database-replica-{number:02}")
            assert name.evaluate("one => one.lastChild.textContent") == f"ica-{number:02}"
            assert name.evaluate("one => one.scrollWidth <= one.clientWidth"), "its end is seen"
            assert name.evaluate("one => one.firstChild.scrollWidth > one.firstChild.clientWidth"), "its middle is not"
        switch = page.locator("#growth .views").bounding_box()
        lines = page.locator("#growth h2 .about").evaluate(
            "one => [...one.getClientRects()].map(box => [box.right, box.bottom, box.top])"
        )
        assert switch is not None
        below = switch["y"] + switch["height"]
        assert all(right <= switch["x"] or bottom <= switch["y"] or top >= below for right, bottom, top in lines)


def test_addresses_are_shown_whole(opened: Open, pages: Pages) -> None:
    def by_address() -> dict[str, Any]:
        data = fleets.fleet(hosts=3, leaking=1, dumps=12)
        for number, host in enumerate(data["units"][0]["hosts"]):
            host["host"] = f"10.{number}.0.5"
        return data

    names = opened(pages("addresses", by_address)).locator("#hostlist .name")
    assert {name.inner_text() for name in names.all()} == {f"10.{number}.0.5" for number in range(3)}


def test_a_link_to_what_the_page_does_not_have_says_so(opened: Open) -> None:
    page = opened(at="unit=gone.service&host=nohost")
    expect(page.locator("#missing")).to_have_text(
        re.compile(r"This page has no gone\.service and no nohost\. It shows frontend\.service on app\d+\.")
    )
    page.locator("#hostlist button").last.click()
    expect(page.locator("#missing")).to_be_hidden()


def test_how_the_objects_of_a_suspect_live_beside_all_others(opened: Open) -> None:
    lives = opened().locator("#suspects .lifecurve").first
    expect(lives).to_contain_text(re.compile(r"100 % of it lives for .* or longer, of all else \d %"))
    falls = [
        line.evaluate(
            "line => { const ys = line.getAttribute('points').split(' ').map(p => Number(p.split(',')[1]));"
            " return ys.at(-1) - ys[0]; }"
        )
        for line in lives.locator("polyline").all()
    ]
    assert falls[0] > 0.9 * 34 and falls[1] == 0, "what leaks is the line that does not fall"
    assert lives.locator(".births rect").count() == 48


def test_two_handles_choose_when_that_was_born_which_lives_still(opened: Open) -> None:
    page = opened()
    born_from, born_until = (page.get_by_role("slider", name=name) for name in ("Born from", "Born until"))
    lives, told = page.locator("#suspects .lifecurve").first, page.locator(".handles output")
    expect(lives).not_to_contain_text("in the chosen time")
    whole = told.inner_text()
    born_from.fill("23")
    born_from.press("ArrowRight")
    expect(lives.locator("rect.out")).to_have_count(24)
    heights = [float(bar.get_attribute("height") or 0) for bar in lives.locator(".births rect").all()]
    parts = re.findall(r"(\d+\.\d) MiB", f"{whole} {told.inner_text()}")
    assert float(parts[1]) / float(parts[0]) == pytest.approx(sum(heights[24:]) / sum(heights), abs=0.01)
    expect(lives).to_contain_text(re.compile(r"its time of birth: \d+\.\d MiB of it in the chosen time"))
    born_until.press("Home")
    expect(lives.locator("rect.in")).to_have_count(1)
    assert re.search(r"#.*\bborn=25-25\b", page.url), "the address says what is on the screen"
    expect(opened(at="born=25-25").locator("#suspects .lifecurve").first.locator("rect.in")).to_have_count(1)
    expect(opened(at="born=40-99").locator("#suspects .lifecurve").first.locator("rect.in")).to_have_count(48)
    page.locator("#hostlist button").last.click()
    expect(page.locator(".handles")).to_be_hidden()


def test_who_holds_a_suspect_is_one_line_with_what_to_do_next(opened: Open) -> None:
    told = opened().locator("#suspects li").first.locator("p.more").first
    expect(told).to_have_text(
        "Who holds it: 93 % (89 to 96 %) lost: nothing leads to them; 7 % (4 to 11 %) kept by global session_cache of"
        " app, through 40960-byte blocks (212 samples). Look where the pointer that inflate got is overwritten or goes"
        " out of scope, as by a return."
    )


def test_who_holds_a_suspect_is_drawn_from_the_holder_to_the_path(opened: Open) -> None:
    lost, kept = opened().locator("#suspects .holders").first.locator("> div").all()
    expect(lost.locator("span")).to_have_text(["93 %", "nothing", "what inflate made"])
    steps = ["7 %", "global session_cache of app", "40960-byte blocks", "what inflate made"]
    expect(kept.locator("span")).to_have_text(steps)


def test_workers_that_were_judged_as_one_have_one_curve(opened: Open, pages: Pages) -> None:
    """From dump to dump 2 and 4 MiB, so 138 MiB in 23 steps."""
    page = opened(pages("workers", fleets.workers))
    expect(page.locator("#cards .card").first).to_contain_text("leaks")
    expect(page.locator("#suspects .rate").first).to_contain_text("72.0 MiB/day")
    expect(page.locator("#suspects .sparkline").first).to_have_text("0 B → 138.0 MiB")


def test_what_has_grown_alone(opened: Open) -> None:
    page = opened()
    expect(page.locator("input[value=grown]")).to_be_checked()
    grown = page.inner_text("#detail")
    assert re.search(r"\d+\.\d MiB grown", grown)
    _frame(page, 3)
    expect(page).to_have_url(re.compile("zoom="))
    assert page.inner_text("#detail") != grown
    page.locator("label", has_text="Shrunk").click()
    expect(page).to_have_url(re.compile("what=shrunk"))
    expect(page.locator("#detail")).to_contain_text(re.compile(r"\d+\.\d [MK]iB shrunk"))


def test_search_finds_and_counts_nested_frames_once(opened: Open) -> None:
    page = opened(at="base=none")
    before = _picture(page)
    page.keyboard.press("/")
    page.keyboard.type("Inflater")
    expect(page.locator("#found")).to_contain_text(re.compile(r"^\d+ frames, \d+\.\d MiB, (\d|[1-9]\d)\.\d %$"))
    assert _picture(page) != before
    page.keyboard.press("Escape")
    expect(page.locator("#found")).to_be_empty()
    assert _picture(page) == before
    page.locator("#search").fill("nothing like it")
    expect(page.locator("#found")).to_have_text("nothing found")


def test_turned_over_and_from_a_frame_both_ways(opened: Open) -> None:
    page = opened(at="base=none")
    root = _picture(page)
    page.keyboard.press("i")
    assert _picture(page) != root
    page.locator("#graph").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#detail")).to_contain_text("os::malloc")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail")).to_contain_text("inflate")
    page.locator("#detail button", has_text="Callers").click()
    expect(page.locator("#above")).to_have_text("Callers of inflate")
    expect(page.locator("#below")).to_have_text("What inflate calls")
    page.locator("#callers").hover(position={"x": 12, "y": ROW * 1.5})
    expect(page.locator("#tip")).to_contain_text("Java_java_util_zip_Inflater_inflateBytesBytes")
    page.keyboard.press("Escape")
    expect(page.locator("#callers")).to_be_hidden()


def test_a_view_is_a_link(opened: Open) -> None:
    first = opened()
    first.locator("#hosts button", has_text="No leak").first.click()
    first.locator("#earlier").click()
    first.keyboard.press("i")
    first.locator("#search").fill("compile")
    _frame(first, 1)
    address = first.url.partition("#")[2]
    second = opened(at=address)
    for part in ("#when", "#detail", "#found", "#growth h2"):
        assert second.inner_text(part) == first.inner_text(part)
    first.mouse.move(0, 0)
    first.locator("#copy").focus()
    second.locator("#copy").focus()
    assert _picture(second) == _picture(first)


def test_the_keyboard_is_enough(opened: Open) -> None:
    page = opened()
    page.locator("#graph").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("#detail")).to_contain_text("JavaCalls::call_helper")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#detail")).not_to_contain_text("JavaCalls::call_helper")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("zoom="))
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("zoom="))
    page.keyboard.press("s")
    expect(page.locator("#above")).to_contain_text("Callers of")
    when = page.inner_text("#when")
    page.keyboard.press(",")
    assert page.inner_text("#when") != when
    page.keyboard.press(".")
    assert page.inner_text("#when") == when
    page.locator("#hosts button").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#hosts button").nth(1)).to_be_focused()
    expect(page.locator("#hosts button").nth(1)).to_have_attribute("aria-pressed", "true")


def test_a_suspect_leads_to_its_stacks(opened: Open) -> None:
    page = opened()
    for suspect, leaf in ((0, "inflate · "), (1, "inflateInit2_ · ")):
        page.locator("#suspects button").nth(suspect).click()
        expect(page).to_have_url(re.compile("zoom="))
        expect(page.locator("#detail")).to_contain_text(re.compile(f"^{leaf}"))
        expect(page.locator("#detail")).to_contain_text("100.0 % of it on a suspected path")


def test_a_thread_alone(opened: Open) -> None:
    page = opened(at="base=none")
    before = _picture(page)
    page.locator("#threads button", has_text="C2 CompilerThre").click()
    expect(page.locator("#stacks h2")).to_contain_text("thread C2 CompilerThre")
    assert _picture(page) != before
    page.locator("#reset").click()
    page.mouse.move(0, 0)
    assert _picture(page) == before


def test_the_waterfall_ends_at_rss(opened: Open) -> None:
    page = opened()
    rows = page.locator("#memory tr th").all_inner_texts()
    assert rows[:2] == ["RSS", "Live, sampled"]
    assert {"Fragmentation", "Java heap", "Thread stacks", "Unexplained"} <= set(rows)
    ends = page.locator("#memory .fall").evaluate_all("all => all.map(one => one.getBoundingClientRect().right)")
    assert abs(ends[0] - ends[-1]) < 2


def test_what_the_parts_mean_is_told_where_there_is_room_and_on_paper(opened: Open) -> None:
    page = opened()
    meanings = page.locator("#memory details")
    expect(meanings).to_have_attribute("open", "")
    expect(meanings.locator("li", has_text="Kept by allocator: ")).to_be_visible()
    meanings.locator("summary").click()
    page.locator("#earlier").click()
    expect(meanings).not_to_have_attribute("open", "")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(meanings).to_have_attribute("open", "")
    expect(opened(width=360, height=780).locator("#memory details")).not_to_have_attribute("open", "")


def test_sizes_of_allocations(opened: Open, pages: Pages) -> None:
    def known() -> dict[str, Any]:
        data = fleets.fleet(hosts=2, leaking=1, dumps=6)
        data["units"][0]["hosts"][0]["sizes"] = [
            {"least": 32, "older": 10 << 20, "live": 10 << 20, "count": 262144},
            {"least": 64, "older": 0, "live": 0, "count": 0},
            {"least": 128, "older": 1 << 20, "live": 40 << 20, "count": 218453},
        ]
        data["units"][0]["hosts"][0]["points"]["time"][2] -= 3600  # a dump that is not among those that are shown
        data["units"][0]["hosts"][1]["sizes"] = []
        return data

    page = opened(pages("sizes", known))
    first = ticket.moment(fleets.START + 2 * fleets.STEP - 3600)
    expect(page.locator("#sizes")).to_contain_text(f"growth since the first, of {first}.")
    rows = page.locator("#sizes tbody tr")
    expect(rows.locator("th")).to_have_text(["32 B to 64 B", "64 B to 128 B", "128 B to 256 B"])
    expect(rows.nth(0).locator(".number")).to_have_text(["10.0 MiB", "20.0 %", "0 B", "262,144"])
    expect(rows.nth(2).locator(".number")).to_have_text(["40.0 MiB", "80.0 %", "+39.0 MiB", "218,453"])
    expect(rows.nth(0).locator(".same")).to_have_count(1)
    expect(rows.nth(2).locator(".more")).to_have_count(1)
    width = "one => one.getBoundingClientRect().width"
    small, none, large = (rows.nth(number).locator(".bar").evaluate(width) for number in range(3))
    assert none == 0
    assert abs(large / small - 4) < 0.1
    page.locator("#hosts button").nth(1).click()
    expect(page.locator("#sizes")).to_be_hidden()


@pytest.mark.parametrize("width", [360, 900, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(opened: Open, width: int, scheme: str) -> None:
    page = opened(width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 23)"
    assert dark == (scheme == "dark")


def test_verdicts_of_the_triage(opened: Open, pages: Pages) -> None:
    path = pages("triage", lambda: {**fleets.fleet(hosts=3, leaking=1, dumps=6), "triage": [fleets.LOOKED]})
    page = opened(path)
    row = page.locator("#triage tbody tr")
    assert row.count() == 1
    for text in ("<b>web1</b>", "malloc-arenas", "50.0 MiB", "+3.0 MiB/h", "Next: try MALLOC_ARENA_MAX=2", "jdwp"):
        assert text in row.inner_text()
    assert opened().locator("#triage").count() == 0


def test_names_are_text(opened: Open, pages: Pages) -> None:
    path = pages("hostile", fleets.hostile)
    page = opened(path)
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    assert fleets.HOSTILE in page.inner_text(".card")
    assert page.title() != "pwned"
    page.locator("#graph").hover(position={"x": 12, "y": ROW * 2.5})
    expect(page.locator("#tip")).to_contain_text("<img src=x")
    page.locator("#hosts button").last.click()
    page.locator("#threads button").first.click()
    assert page.locator("img").count() == 0


def test_the_policy_stops_what_would_get_in(pages: Pages, tmp_path: Path, browser: Any) -> None:
    html = pages("hostile", fleets.hostile).read_text()
    foreign = "<script>document.title = 'pwned'</script><img src='https://example.invalid/x'>"
    (tmp_path / "changed.html").write_text(html.replace('<main id="report">', foreign + '<main id="report">'))
    page = browser.new_page()
    refused: list[tuple[str, str | None]] = []
    page.on("requestfailed", lambda request: refused.append((request.url, request.failure)))
    page.goto((tmp_path / "changed.html").as_uri())
    page.wait_for_selector(".card")
    assert page.title() != "pwned"
    assert refused == [("https://example.invalid/x", "csp")]
    page.close()


def test_a_hundred_thousand_frames(opened: Open, pages: Pages) -> None:
    page = opened(pages("large", lambda: fleets.large(100_000)))
    assert page.evaluate("JSON.parse(document.getElementById('data').textContent).units[0].tree.frame.length") > 95_000
    before = _picture(page)
    page.keyboard.press(",")
    assert _picture(page) != before


def test_captures_of_an_archive(opened: Open, tmp_path: Path) -> None:
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    seen = Fleet()
    host_report.reports(archive, Scope(), host_report.Limits(), pytest.fail, False, seen)
    (tmp_path / "report.html").write_text(report_page.render(seen.data()))
    page = opened(tmp_path / "report.html")
    expect(page.locator(".card")).to_contain_text(re.compile(r"frontend\.service leaks .* on 1 of 2 hosts"))
    expect(page.locator("#memory")).to_contain_text("No memory statistics came with the dumps")
    page.locator("#search").fill("inflate")
    expect(page.locator("#found")).to_contain_text("1 frame, ")
    page.locator("#hosts button", has_text="app2").click()
    expect(page.locator("#suspects")).to_contain_text("No leak: no code path grows")


def test_without_scripts_the_text_is_there(browser: Any, pages: Pages) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages("hostile", fleets.hostile).as_uri())
    assert "Native memory report" in page.inner_text("noscript")
    context.close()


def test_the_committed_assets_are_what_the_build_gives(tmp_path: Path) -> None:
    tools = ROOT / "tools" / "report"
    if shutil.which("node") is None or not (tools / "node_modules").is_dir():
        pytest.skip("no Node with the libraries (npm ci in tools/report)")
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=tools, check=True)
    for name in ("page.js", "page.css"):
        committed = ROOT / "plugins/plugin_utils/export/assets" / name
        assert (tmp_path / name).read_bytes() == committed.read_bytes(), f"run npm run build in {tools}"
