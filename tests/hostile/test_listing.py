# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Listings that hold more than was asked for, or stand for more than they hold."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import plan
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import CollectError, Wanted, collect
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.archive import capture_samples
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.fetch.test_collect import Host


def _refused(directory: Path, listing: dict[str, Any], why: str) -> None:
    """Nothing of the host gets into the archive, and all of the next one's does."""
    archive = Archive.create(directory / "archive")
    before = sorted(directory.rglob("*"))
    host = Host()
    host.listing = listing
    with costs_at_most(10, 64), pytest.raises(CollectError, match=why):
        collect(host, archive, Wanted("liar", max_captures=1000))
    assert host.calls == ["find"] and sorted(directory.rglob("*")) == before
    assert len(collect(Host(), archive, Wanted("next")).captures) == 3


def test_more_captures_than_asked_for(tmp_path: Path) -> None:
    listing = capture_samples.listing(b"one")
    listing["captures"] = [copy.deepcopy(listing["captures"][0]) for _number in range(20000)]
    _refused(tmp_path, listing, "20000 captures, and 1000 were asked for")


def test_one_path_that_is_named_thousands_of_times(tmp_path: Path) -> None:
    listing = capture_samples.listing(b"one")
    listing["images"][0]["path"] = "/" + "x" * 16000
    listing["captures"][0]["images"] = [0] * 65536
    _refused(tmp_path, listing, "longer than those of any process")


def test_a_command_line_of_many_long_words(tmp_path: Path) -> None:
    listing = capture_samples.listing(b"one")
    listing["processes"][0]["cmdline"] = ["x" * 16000] * 16000
    _refused(tmp_path, listing, "cmdline")


def test_more_bytes_than_a_host_may_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_BYTES", 110)
    archive = Archive.create(tmp_path / "archive")
    done = collect(Host(), archive, Wanted("liar", max_batch=1))
    assert len(done.captures) == 2 and done.bytes <= 110
    assert [warning for warning in done.warnings if warning.startswith("1 dumps exceed the 110 B")]
    assert len(collect(Host(), archive, Wanted("liar", max_batch=1)).captures) == 1, "the next run brings the rest"
