# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import copy
from typing import Any
from xml.etree import ElementTree

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.report import files, lives_picture
from ansible_collections.offheap.profiler.tests.browser import fleets

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return fleets.fleet(hosts=9, leaking=3, dumps=24)


def _drawn(data: dict[str, Any]) -> ElementTree.Element:
    picture = lives_picture.render(data)
    assert picture is not None
    return ElementTree.fromstring(picture)


def _heights(picture: ElementTree.Element, kind: str) -> list[float]:
    """Where the first line of this kind runs, from above, point by point."""
    line = next(one for one in picture.iter(f"{SVG}polyline") if one.get("class") == kind)
    return [float(point.split(",")[1]) for point in (line.get("points") or "").split()]


def test_what_leaks_is_the_line_that_does_not_fall(data: dict[str, Any]) -> None:
    picture = _drawn(data)
    assert set(_heights(picture, "path")) == {0.0}
    others = _heights(picture, "others")
    assert others == sorted(others) and others[0] < 1 and others[-1] > 79


def test_each_suspect_of_the_ticket_has_a_row_with_its_number_and_its_births(data: dict[str, Any]) -> None:
    picture = _drawn(data)
    titles = [text.text or "" for text in picture.iter(f"{SVG}text") if text.get("class") == "title"]
    suspects = data["units"][0]["suspects"]
    assert len(titles) == len(suspects) > 1
    for number, (title, suspect) in enumerate(zip(titles, suspects, strict=True), 1):
        begin = title[:-1].partition(f", {number}. ")[2]
        assert begin and suspect["short"].startswith(begin)
    bars = [float(bar.get("height") or 0) for bar in picture.iter(f"{SVG}rect") if bar.get("class") == "born"]
    born = data["units"][0]["hosts"][0]["suspects"][0]["lives"]["born"]
    assert len(bars) == len(suspects) * len(born)
    assert bars.index(max(bars)) == born.index(max(born))


def test_the_host_that_leaks_most_is_shown(data: dict[str, Any]) -> None:
    short = data["units"][0]["suspects"][0]["short"]
    rates = {
        host["host"]: one["growth"]
        for host in data["units"][0]["hosts"]
        for one in host["suspects"]
        if one["short"] == short
    }
    title = next(text for text in _drawn(data).iter(f"{SVG}text") if text.get("class") == "title")
    assert f" on {max(rates, key=rates.__getitem__)}, 1. " in (title.text or "")


def test_names_stay_text() -> None:
    picture = _drawn(fleets.hostile())
    assert {one.tag.removeprefix(SVG) for one in picture.iter()} == {
        *("svg", "title", "style", "rect", "g", "text", "path", "polyline")
    }
    assert any((text.text or "").startswith(fleets.HOSTILE[:20]) for text in picture.iter(f"{SVG}text"))


def test_the_ticket_shows_the_picture_where_lives_are_known(data: dict[str, Any]) -> None:
    known = files.of_fleet(data)
    assert known["picture"] == lives_picture.render(data)
    assert known["text"].endswith("```\n\n![How the objects of the leaking paths live](report.svg)\n")
    unjudged = copy.deepcopy(data)
    for host in unjudged["units"][0]["hosts"]:
        for suspect in host["suspects"]:
            suspect["lives"] = None
    unknown = files.of_fleet(unjudged)
    assert "picture" not in unknown and "report.svg" not in unknown["text"]
