# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
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


def _mark(*stack: str, rate: str = "64.0 MiB/day ± 6.0 MiB", path: str = "inflate ← [jit]") -> Mark:
    def covers(frames: Sequence[Frame]) -> bool:
        return [frame.label for frame in frames] == list(stack)

    return Mark(rate, path, covers)


def _data(html: str) -> Any:
    return json.loads(_Reader(html).scripts[0])


def _columns(html: str, name: str) -> dict[tuple[str, ...], float]:
    """Path from the root -> value, of one column of the tree."""
    data = _data(html)
    paths: list[tuple[str, ...]] = []
    for parent, frame in zip(data["parents"], data["frame"], strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), data["frames"][frame]["name"]))
    return dict(zip(paths, data[name], strict=True))


def test_stacks_are_merged_from_the_root() -> None:
    html = flamegraph.render(_page(), profile({("a", "main"): 10.0, ("b", "main"): 5.0, ("c", "start"): 1.0, (): 2.0}))
    assert _columns(html, "live") == {
        ("all",): 18,
        ("all", "main"): 15,
        ("all", "main", "a"): 10,
        ("all", "main", "b"): 5,
        ("all", "start"): 1,
        ("all", "start", "c"): 1,
        ("all", "[no stack]"): 2,
    }


def test_what_came_since_the_older_profile_is_a_view_of_its_own() -> None:
    older = profile({("a", "main"): 10.0, ("b", "main"): 5.0, ("gone", "main"): 3.0})
    now = profile({("a", "main"): 30.0, ("b", "main"): 4.0, ("new", "main"): 2.0})
    html = flamegraph.render(_page(baseline="09:00"), now, older)
    assert _columns(html, "grown")[("all", "main")] == 22
    assert _columns(html, "change")[("all", "main")] == 18
    assert ("all", "main", "gone") not in _columns(html, "live")
    assert "Came since 09:00" in html
    assert "Came since" not in flamegraph.render(_page(baseline="09:00"), now)


def test_marks_are_suspects_and_lead_to_their_frame() -> None:
    found = profile({INFLATE: 10.0 * MIB, ("other", "[jit]"): 30.0 * MIB})
    html = flamegraph.render(_page(marks=[_mark(*INFLATE)]), found)
    assert _columns(html, "suspect")[("all", "[jit]")] == 10 * MIB
    assert _columns(html, "suspect")[("all", "[jit]", "other")] == 0
    (node,) = [value for name, value in _Reader(html).attributes if name == "data-node"]
    assert list(_columns(html, "live"))[int(node or 0)] == ("all", *reversed(INFLATE))
    assert "64.0 MiB/day ± 6.0 MiB" in html
    assert "inflate ← [jit]" in html


def test_another_row_is_drawn_where_it_is_asked_for() -> None:
    found = profile({("a", "main"): 40960.0, ("b", "main"): 4096.0}, size=1024)
    live = _columns(flamegraph.render(_page(), found, row=OBJECTS), "live")
    assert (live[("all", "main", "a")], live[("all", "main", "b")]) == (40, 4)


def test_of_a_huge_tree_the_widest_frames_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamegraph, "_MOST_NODES", 20)
    found = profile({(f"leaf{number}", f"middle{number}", "main"): float(number) for number in range(1, 101)})
    live = _columns(flamegraph.render(_page(), found), "live")
    assert len(live) <= 20
    assert live[("all", "main")] == 5050
    assert live[("all", "main", "middle100", "leaf100")] == 100
    assert min(live.values()) > 90


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
    mark = _mark(HOSTILE, "main", rate=HOSTILE, path=HOSTILE)
    page = Page(HOSTILE, HOSTILE, "leak", HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)], [mark], HOSTILE)
    reader = _Reader(flamegraph.render(page, found, found))
    plain = _Reader(
        flamegraph.render(_page(baseline="x", facts=[("a", "b")], marks=[_mark(HOSTILE, "main")]), found, found)
    )
    assert reader.elements == plain.elements
    assert len(reader.scripts) == 2
    assert reader.text.count(HOSTILE) >= 8
    assert ("all", "main", HOSTILE) in _columns(flamegraph.render(page, found), "live")


@settings(deadline=None)
@given(profiles(), profiles())
def test_any_profile_makes_a_page(now: Samples, older: Samples) -> None:
    html = flamegraph.render(_page(baseline="x"), now, older)
    reader = _Reader(html)
    assert len(reader.scripts) == 2
    assert abs(_columns(html, "live")[("all",)] - now.total(BYTES)) <= 1


def test_the_same_profiles_make_the_same_page() -> None:
    found = profile({INFLATE: 10.0, ("other",): 2.0})
    assert flamegraph.render(_page(), found) == flamegraph.render(_page(), found)


def test_a_browser_draws_it_without_a_complaint(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine (Debian's package chromium)")
    found = profile({INFLATE: 10.0 * MIB, (HOSTILE, "main"): 30.0 * MIB})
    page = tmp_path / "page.html"
    page.write_text(flamegraph.render(_page(marks=[_mark(*INFLATE)]), found))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    command = [
        chromium,
        *flags.split(),
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path}/x",
    ]
    command += ["--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in result.stderr
    # Five frames of one stack, two of the other, and "all": each a group with its name.
    names = re.findall(r'<g[^>]* name="([^"]*)"', result.stdout)
    assert len(names) == 7
    assert "inflate" in names
