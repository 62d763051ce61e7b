# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The lives of the leaking paths as a picture (SVG) beside the ticket, numbered as there: what share of a path's
objects reaches which age, and when those were born that live still. The page draws the same (lifecurve.js)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from ..base.byte_size import as_text
from ..base.durations import duration
from .ticket import MOST_SUSPECTS, moment

_WIDTH = 760
_MARGIN = 20
_CHART = 345
_HEIGHT = 80
_ROW = 170
# Above a row's charts: two lines of words. Below them: what the ends of the axes are.
_WORDS = 56
_LONGEST = 88
# A curve with fewer ages is a point or two.
_LEAST_AGES = 3

_STYLE = """
svg { color-scheme: light dark; }
.page { fill: #fff; } text { fill: #1b1e22; font: 13px sans-serif; } .small { fill: #62686f; font-size: 12px; }
.title { font-weight: bold; } .axis { stroke: #e3e4e6; } .path { stroke: #b3261e; stroke-width: 2.5; fill: none; }
.others { stroke: #62686f; stroke-width: 1.5; fill: none; } .born { fill: #b3261e; opacity: .75; }
@media (prefers-color-scheme: dark) {
.page { fill: #1b1e21; } text { fill: #e6e8ea; } .small { fill: #9aa1a8; } .axis { stroke: #2e3237; }
.path { stroke: #ff8f84; } .others { stroke: #9aa1a8; } .born { fill: #ff8f84; } }
"""


def render(data: Mapping[str, Any]) -> str | None:
    """The picture for a Fleet's data, a row for each suspect of the ticket; None where no suspect has lives."""
    rows = [row for unit in data["units"] for row in _rows(unit)]
    if not rows:
        return None
    height = _ROW * len(rows) + _MARGIN
    shown = [f'<g transform="translate({_MARGIN} {_MARGIN + _ROW * at})">{row}</g>' for at, row in enumerate(rows)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
            f' viewBox="0 0 {_WIDTH} {height}" role="img">',
            "<title>How the objects of the leaking paths live</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
            *shown,
            "</svg>\n",
        ]
    )


def _rows(unit: Mapping[str, Any]) -> Iterator[str]:
    for number, suspect in enumerate(unit["suspects"][:MOST_SUSPECTS], 1):
        seen = [
            (one["growth"], host["host"], one["lives"], host["others_lives"])
            for host in unit["hosts"]
            for one in host["suspects"]
            if one["short"] == suspect["short"] and one["lives"] and len(one["lives"]["ages"]) >= _LEAST_AGES
        ]
        if seen:
            _growth, host, lives, others = max(seen, key=lambda one: one[0])
            yield _row(f"{unit['unit']} on {host}, {number}. {suspect['short']}", lives, others)


def _row(title: str, lives: Mapping[str, Any], others: Mapping[str, Any] | None) -> str:
    first, last = lives["ages"][1], lives["ages"][-1]
    # Ages double from one to the next.
    scale = _CHART / max(math.log2(last / first), 1)

    def curve(one: Mapping[str, Any], kind: str) -> str:
        known = [(age, share) for age, share in zip(one["ages"], one["alive"], strict=True) if first <= age <= last]
        points = " ".join(f"{scale * math.log2(age / first):.1f},{_HEIGHT * (1 - share):.1f}" for age, share in known)
        return f'<polyline class="{kind}" points="{points}"/>'

    age = max(one for one in lives["ages"] if one <= max(last / 2, first))
    elsewhere = f" (all else, grey: {_reaching(others, age)})" if others else ""
    reached = f"{_reaching(lives, age)} live for {duration(age)} or longer{elsewhere}"
    right = _CHART + _MARGIN + 10
    born = f"{as_text(sum(lives['born']))} live still, by time of birth"
    return "".join(
        [
            _text(0, 14, title if len(title) <= _LONGEST else f"{title[: _LONGEST - 1]}…", "title"),
            _text(0, 36, reached, "small"),
            _text(right, 36, born, "small"),
            f'<g transform="translate(0 {_WORDS})">',
            f'<path class="axis" d="M0 {_HEIGHT}H{_CHART}M{right} {_HEIGHT}h{_CHART}"/>',
            curve(others, "others") if others else "",
            curve(lives, "path"),
            f'<g transform="translate({right} 0)">{_births(lives["born"])}</g>',
            _text(0, _HEIGHT + 16, f"{first:.1f} s old" if first < 1 else f"{duration(first)} old", "small"),
            _text(_CHART, _HEIGHT + 16, f"{duration(last)} old", "small end"),
            _text(right, _HEIGHT + 16, moment(lives["began"]), "small"),
            _text(right + _CHART, _HEIGHT + 16, moment(lives["now"]), "small end"),
            "</g>",
        ]
    )


def _births(born: Sequence[float]) -> str:
    most, each = max(*born, 1), _CHART / len(born)
    heights = [_HEIGHT * size / most for size in born]
    return "".join(
        f'<rect class="born" x="{each * at:.1f}" y="{_HEIGHT - height:.1f}" width="{0.8 * each:.1f}"'
        f' height="{height:.1f}"/>'
        for at, height in enumerate(heights)
    )


def _reaching(curve: Mapping[str, Any], age: float) -> str:
    share = [share for reached, share in zip(curve["ages"], curve["alive"], strict=True) if reached <= age][-1]
    return f"{100 * share:.0f} %"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    anchor = ' text-anchor="end"' if kind.endswith("end") else ""
    return f'<text x="{x}" y="{y}" class="{kind}"{anchor}>{escape(text)}</text>'
