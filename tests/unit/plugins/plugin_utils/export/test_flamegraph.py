# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import flamegraph
from ansible_collections.offheap.profiler.plugins.plugin_utils.export.flamegraph import Mark, Page
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, OBJECTS, Samples
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile, profiles

MIB = 1 << 20
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)><!--"
INFLATE = ("libz.so.1+0xbdc5", "inflate", "Java_java_util_zip_Inflater_inflateBytesBytes", "[jit]")


class _Reader(HTMLParser):
    """Elements, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self._into: list[str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        self._into = {"script": self.scripts, "style": self.styles}.get(tag)
        if self._into is not None:
            self._into.append("")

    def handle_endtag(self, tag: str) -> None:
        self._into = None

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._into[-1] += data
        else:
            self.text += data


def _page(**more: Any) -> Page:
    return Page("frontend.service", "app1", "leak", "Leak of 1 MiB/day ± 1 KiB", "one code path grows", **more)


def _mark(*stack: str, path: str = "inflate ← [jit]") -> Mark:
    def covers(frames: Sequence[Frame]) -> bool:
        return [frame.label for frame in frames] == list(stack)

    return Mark(64.0 * MIB, 6.0 * MIB, path, covers)


def _data(html: str) -> Any:
    return json.loads(_Reader(html).scripts[0])


def _dumps(html: str) -> list[dict[tuple[str, ...], float]]:
    """Path from the root -> bytes, of each dump, as the page adds them up."""
    data = _data(html)
    (unit,) = data["units"]
    (host,) = unit["hosts"]
    names, tree = data["frames"]["name"], unit["tree"]
    paths: list[tuple[str, ...]] = []
    for node, (distance, frame) in enumerate(zip(tree["parent"], tree["frame"], strict=True)):
        paths.append((*(paths[node - distance] if node else ()), names[frame]))
    found = []
    for dump in host["dumps"]:
        sums: dict[tuple[str, ...], float] = dict.fromkeys(paths, 0.0)
        for node, size in zip(accumulate(dump["nodes"]), dump["bytes"], strict=True):
            for depth in range(1, len(paths[node]) + 1):
                sums[paths[node][:depth]] += size
        found.append({path: size for path, size in sums.items() if size})
    return found


def test_stacks_are_merged_from_the_root() -> None:
    html = flamegraph.render(_page(), profile({("a", "main"): 10.0, ("b", "main"): 5.0, ("c", "start"): 1.0, (): 2.0}))
    assert _dumps(html) == [{
        ("all",): 18,
        ("all", "main"): 15,
        ("all", "main", "a"): 10,
        ("all", "main", "b"): 5,
        ("all", "start"): 1,
        ("all", "start", "c"): 1,
        ("all", "[no stack]"): 2,
    }]  # fmt: skip


def test_the_older_profile_is_there_to_compare_with() -> None:
    older = profile({("a", "main"): 10.0, ("b", "main"): 5.0, ("gone", "main"): 3.0})
    now = profile({("a", "main"): 30.0, ("b", "main"): 4.0, ("new", "main"): 2.0})
    html = flamegraph.render(_page(baseline="09:00"), now, older)
    then, newest = _dumps(html)
    assert (then["all", "main"], newest["all", "main"]) == (18, 36)
    assert ("all", "main", "gone") in then and ("all", "main", "gone") not in newest
    assert [dump["name"] for dump in _data(html)["units"][0]["hosts"][0]["dumps"]] == ["09:00", "now"]
    assert len(_dumps(flamegraph.render(_page(baseline="09:00"), now))) == 1


def test_marks_are_suspects_and_lead_to_their_frame() -> None:
    found = profile({INFLATE: 10.0 * MIB, ("other", "[jit]"): 30.0 * MIB})
    data = _data(flamegraph.render(_page(marks=[_mark(*INFLATE)]), found))
    (suspect,) = data["units"][0]["hosts"][0]["suspects"]
    assert (suspect["growth"], suspect["error"], suspect["live"]) == (64 * MIB, 6 * MIB, 10 * MIB)
    assert suspect["short"] == "inflate ← [jit]"
    (node,) = suspect["nodes"]
    assert data["frames"]["name"][data["units"][0]["tree"]["frame"][node]] == INFLATE[0]


def test_another_row_is_drawn_where_it_is_asked_for() -> None:
    found = profile({("a", "main"): 40960.0, ("b", "main"): 4096.0}, size=1024)
    (live,) = _dumps(flamegraph.render(_page(), found, row=OBJECTS))
    assert (live["all", "main", "a"], live["all", "main", "b"]) == (40, 4)


def test_of_a_huge_tree_the_largest_stacks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamegraph, "_MOST_NODES", 20)
    found = profile({(f"leaf{number}", f"middle{number}", "main"): float(number) for number in range(1, 101)})
    html = flamegraph.render(_page(), found)
    (live,) = _dumps(html)
    assert len(live) <= 22
    assert live["all", "main", "middle100", "leaf100"] == 100
    assert live["all",] == 5050
    assert live["all", "[smaller stacks]"] > 4000
    assert 0 < _data(html)["units"][0]["left_out"] < 92 / 5050


def test_the_page_needs_nothing_from_elsewhere_and_allows_nothing() -> None:
    html = flamegraph.render(_page(), profile({("a",): 1.0}))
    reader = _Reader(html)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    policy = policy.replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for content in (reader.scripts[1], reader.styles[0]):
        assert "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'" in policy
    assert {name for name, _value in reader.attributes}.isdisjoint({"src", "style", "onclick", "onload"})
    assert [value for name, value in reader.attributes if name == "href"] == ["data:,"]
    # XML namespaces, not addresses.
    assert {address.split("/")[2] for address in re.findall(r"https?://[^\s\"'`)]+", html)} <= {"www.w3.org"}


def test_hostile_names_stay_text() -> None:
    found = profile({(HOSTILE, "main"): 10.0})
    page = Page(HOSTILE, HOSTILE, "leak", HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], [_mark(HOSTILE, "main")], HOSTILE)
    html = flamegraph.render(page, found, found)
    reader = _Reader(html)
    assert reader.elements == _Reader(flamegraph.render(_page(), found)).elements
    assert len(reader.scripts) == 2
    assert reader.text.count(HOSTILE) >= 6
    assert ("all", "main", HOSTILE) in _dumps(html)[1]


@settings(deadline=None)
@given(profiles(), profiles())
def test_any_profile_makes_a_page(now: Samples, older: Samples) -> None:
    html = flamegraph.render(_page(baseline="x"), now, older)
    reader = _Reader(html)
    assert len(reader.scripts) == 2
    assert abs(_dumps(html)[1].get(("all",), 0) - now.total(BYTES)) <= len(now) + 1


def test_the_same_profiles_make_the_same_page() -> None:
    found = profile({INFLATE: 10.0, ("other",): 2.0})
    assert flamegraph.render(_page(), found) == flamegraph.render(_page(), found)
