# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.offheap.profiler.console import answers
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import SessionError

MIB = 1 << 20


def test_what_a_trim_gave_back_is_told_by_process() -> None:
    trimmed = {"pid": 7, "path": "/x", "rss_before": 300 * MIB, "rss_after": 200 * MIB}
    only_dumped = {"pid": 8, "path": "/y", "rss_before": None, "rss_after": None}
    told = answers.trimmed({"dumps": [trimmed, only_dumped]})
    assert told == ["process 7: 300.0 MiB resident before, 200.0 MiB after"]


@pytest.mark.parametrize(
    "dumps", [None, ["x"], [{"pid": "\x1b[2J", "rss_before": 1, "rss_after": 1}], [{"pid": 7, "rss_before": 1}]]
)
def test_what_makes_no_sense_is_an_error_of_that_host(dumps: Any) -> None:
    with pytest.raises(SessionError):
        answers.trimmed({"dumps": dumps})


def test_names_of_dumps() -> None:
    assert answers.dumped({"dumps": [{"path": "/var/lib/offheap/x/1.heap"}]}) == ["1.heap"]
    wrong: list[Any] = [[{}], [{"path": 5}], ["x"], None]
    for dumps in wrong:
        with pytest.raises(SessionError):
            answers.dumped({"dumps": dumps})
