# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What pages of other profilers have, too: steps through matches; what is hidden, copied, saved, printed; colours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ansible_collections.offheap.profiler.tests.browser import fleets
from ansible_collections.offheap.profiler.tests.browser.conftest import Open
from ansible_collections.offheap.profiler.tests.browser.test_accessible import serious

Pages = Callable[[str, Callable[[], dict[str, Any]]], Path]
ROW = 21
# How the colours of red, green and blue light mix in an eye without the cones for red or for green (Machado 2009).
EYES = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def _saved(page: Page, button: str) -> tuple[str, str]:
    with page.expect_download() as download:
        page.locator(button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_text()


def test_matches_are_stepped_through_the_largest_first(opened: Open) -> None:
    page = opened(at="base=none")
    expect(page.locator("#next")).to_be_disabled()
    page.locator("#search").fill("Inflater")
    count = int(page.inner_text("#found").split()[0])
    assert count > 2
    sizes = []
    for number in range(1, count + 1):
        page.locator("#next").click()
        expect(page.locator("#nth")).to_have_text(f"{number} of {count}")
        expect(page.locator("#detail")).to_contain_text("Inflater")
        number_of, unit = re.findall(r"([\d.]+) (MiB|KiB|B) ±", page.inner_text("#detail"))[0]
        sizes.append(float(number_of) * {"MiB": 1024.0, "KiB": 1.0, "B": 0.0}[unit])
    assert sizes == sorted(sizes, reverse=True)
    page.locator("#graph").focus()
    page.keyboard.press("n")
    expect(page.locator("#nth")).to_have_text(f"1 of {count}")
    page.keyboard.press("N")
    expect(page.locator("#nth")).to_have_text(f"{count} of {count}")


def test_a_frame_and_a_library_are_hidden_and_shown_again(opened: Open) -> None:
    page = opened(at="base=none")
    whole = page.inner_text("#detail")
    page.locator("#search").fill("^inflate$")
    page.locator("#next").click()
    page.locator("#detail button", has_text=re.compile("^Hide$")).click()
    expect(page.locator("#hiding")).to_contain_text(
        re.compile(r"Hidden: 7\d\.\d MiB, 3\d\.\d %, .* through inflate$|inflateShow")
    )
    expect(page.locator("#found")).to_have_text("nothing found")
    page.locator("#search").fill("^inflateInit2_$")
    page.locator("#next").click()
    page.locator("#detail button", has_text="Hide library").click()
    expect(page.locator("#hiding")).to_contain_text("through inflate, [libz.so.1]")
    assert "hide=inflate" in page.url
    expect(opened(at=page.url.partition("#")[2]).locator("#hiding")).to_contain_text("through inflate, [libz.so.1]")
    page.locator("#hiding button").click()
    expect(page.locator("#hiding")).to_be_hidden()
    page.locator("#search").fill("")
    page.locator("#graph").click(position={"x": 12, "y": ROW * 1.5}, modifiers=["Alt"])
    expect(page.locator("#hiding")).to_contain_text("100.0 %, all stacks through start_thread")
    page.keyboard.press("u")
    expect(page.locator("#detail")).to_have_text(whole)


def test_a_name_and_a_stack_are_copied(opened: Open) -> None:
    for at in ("base=none", "base=none&from=leaf"):
        page = opened(at=f"{at}&find=^Frontend.unpack$")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("#next").click()
        page.locator("#detail button", has_text="Copy stack").click()
        expect(page.locator("#found")).to_have_text("Copied the stack of Frontend.unpack")
        about, *frames = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert re.match(r"frontend\.service on app\d+: .*MiB ± .* live", about)
        names = [line.split()[0] for line in frames]
        if "leaf" in at:
            assert names[0] in ("inflate", "os::malloc") and names[-1] == "Frontend.unpack"
        else:
            assert (names[0], names[-1]) == ("Frontend.unpack", "start_thread")
        page.locator("#graph").focus()
        page.keyboard.press("c")
        expect(page.locator("#found")).to_have_text("Copied Frontend.unpack")
        assert page.evaluate("navigator.clipboard.readText()") == "Frontend.unpack"


def test_what_is_seen_is_saved_as_folded_stacks(opened: Open) -> None:
    page = opened(at="base=none")
    name, text = _saved(page, "#savefolded")
    assert re.fullmatch(r"frontend\.service-app\d+\.folded", name)
    sizes = {stack: int(size) for stack, _blank, size in (line.rpartition(" ") for line in text.splitlines())}
    total = float((re.search(r"([\d.]+) MiB", page.inner_text("#detail")) or [""])[1])
    assert sum(sizes.values()) / fleets.MIB == pytest.approx(total, abs=0.06)
    assert all(stack.startswith("start_thread;") for stack in sizes)
    page.keyboard.press("i")
    turned = _saved(page, "#savefolded")[1]
    assert {line.rpartition(" ")[0] for line in turned.splitlines()} == set(sizes), "from malloc it is the same"
    page.locator("#search").fill("^Frontend.unpack$")
    page.keyboard.press("Escape")
    page = opened(at="base=none&find=^Frontend.unpack$")
    page.locator("#next").click()
    assert all(";Frontend.unpack" in line for line in _saved(page, "#savefolded")[1].splitlines())


def test_what_is_seen_is_saved_as_a_picture(opened: Open, pages: Pages) -> None:
    page = opened(pages("hostile", fleets.hostile))
    name, text = _saved(page, "#savesvg")
    assert name.endswith(".svg")
    svg = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    boxes = svg.findall(f"{space}g")
    assert len(boxes) > 2 and all(float(box[1].get("width", "")) > 0 for box in boxes)
    assert any("<img src=x" in (box[0].text or "") for box in boxes), "a name is text there, too"
    assert {element.tag for element in svg.iter()} <= {f"{space}{tag}" for tag in ("svg", "title", "rect", "g", "text")}


def test_functions_are_sorted_both_ways(opened: Open) -> None:
    page = opened(at="base=none")
    head = page.locator(".functions th", has_text="cum").first
    first = []
    for direction in ("descending", "ascending"):
        head.locator("button").click()
        expect(head).to_have_attribute("aria-sort", direction)
        first.append(page.locator(".functions tbody tr").first.inner_text())
    assert first[0] != first[1]
    head.locator("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")


def _background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_light_and_dark_are_switched(opened: Open) -> None:
    light, dark = _background(opened()), _background(opened(scheme="dark"))
    page = opened()
    for background, name in ((dark, "Light"), (light, "Dark")):
        page.keyboard.press("d")
        assert _background(page) == background
        expect(page.locator("#theme")).to_have_text(name)
    assert "theme" not in page.url
    page = opened(at="theme=light", scheme="dark")
    assert _background(page) == light
    page.locator("#theme").click()
    assert "theme" not in page.url and _background(page) == dark
    page.emulate_media(color_scheme="light")
    expect(page.locator("body")).to_have_css("background-color", light)  # the system is followed again


def test_paper_is_light(opened: Open) -> None:
    page = opened(scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    light = _background(opened())
    assert _background(page) == light
    page.emulate_media(media="print")
    for of_no_use in (".switches", "#hint"):
        expect(page.locator(of_no_use)).to_be_hidden()
    expect(page.locator("#legend")).to_be_visible()
    assert page.locator("#legend .swatch.grown").evaluate("one => getComputedStyle(one).printColorAdjust") == "exact"
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert _background(page) != light


def _least_difference(page: Page, eye: str) -> float:
    """Between what has grown, has shrunk and is new, as that eye sees them (0 to 442)."""
    found = page.evaluate(
        """() => {
            const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
            return ["grown", "shrunk", "fresh"].map(kind => {
                const style = getComputedStyle(document.querySelector(`#legend .${kind}`));
                const last = [...style.backgroundImage.matchAll(/rgb\\([^)]*\\)/g)].pop();
                context.fillStyle = last ? last[0] : style.backgroundColor;
                context.fillRect(0, 0, 1, 1);
                return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
            });
        }"""
    )
    linear = [[(part / 255) ** 2.2 for part in colour] for colour in found]
    seen = [[sum(f * p for f, p in zip(row, one, strict=True)) for row in EYES[eye]] for one in linear]
    shown = [[255 * max(part, 0.0) ** (1 / 2.2) for part in one] for one in seen]
    pairs = [(0, 1), (0, 2), (1, 2)]
    return float(min(sum((a - b) ** 2 for a, b in zip(shown[i], shown[j], strict=True)) ** 0.5 for i, j in pairs))


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_palette_for_the_colour_blind_differs_for_their_eyes(opened: Open, eye: str, scheme: str) -> None:
    page = opened(at="what=live", scheme=scheme)
    usual = _least_difference(page, eye)
    page.keyboard.press("p")
    expect(page.locator("#palette")).to_have_attribute("aria-pressed", "true")
    assert _least_difference(page, eye) > max(40, usual)
    assert serious(page) == []


def test_a_thread_that_is_chosen_shows_its_stacks(opened: Open) -> None:
    page = opened()
    button = page.locator("#threads button").first
    button.scroll_into_view_if_needed()
    button.click()
    expect(page.locator("#stacks h2")).to_be_in_viewport()


def test_the_files_of_a_host_are_linked(opened: Open, pages: Pages) -> None:
    def known() -> dict[str, Any]:
        data = fleets.fleet(hosts=2, leaking=1, dumps=6)
        data["units"][0]["hosts"][0]["files"] = {"text": "a%23b.service/app1.txt"}
        return data

    page = opened(pages("linked", known))
    expect(page.locator("#files a")).to_have_attribute("href", "a%23b.service/app1.txt")
    page.locator("#hosts button").nth(1).click()
    expect(page.locator("#files a")).to_have_count(0)


def test_the_keyboard_skips_to_the_stacks(opened: Open) -> None:
    page = opened()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#graph")).to_be_focused()


def test_on_a_narrow_screen_a_function_s_name_comes_first(opened: Open) -> None:
    page = opened(width=360, height=780)
    row = page.locator(".functions tbody tr").first
    name, number = (row.locator("td").nth(at).bounding_box() for at in (-1, 0))
    assert name and number and name["y"] < number["y"] and name["x"] + 40 < 360
