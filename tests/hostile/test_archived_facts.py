# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Facts in an archive, into which others may have written: what is wrong with one capture ends no report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import CaptureFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import Host
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import page, ticket
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.fleet import Fleet, Observed
from ansible_collections.offheap.profiler.tests.browser import fleets

_ODD: list[Any] = ["x", -1, 1 << 70, float("nan"), 1e308, [], {}, [1], {"a": {"b": []}}, True, None]
_KEYS = ("heap_used", "heap_committed", "heap_resident", "metaspace", "nmt")


def _reported(facts: CaptureFacts) -> dict[str, Any]:
    dumps: fleets.Dumps = [
        (fleets.START + number * fleets.STEP, {("load", "main"): 3.0 * fleets.MIB}, facts) for number in range(4)
    ]
    process = fleets.process("web.service", "app1", "12-0000beef", dumps)
    verdict = process.watched.verdict
    fleet = Fleet()
    fleet.add(Observed(Host("web.service", "app1", 4, [process], verdict), "No leak", []))
    return fleet.data()


@pytest.mark.parametrize("key", _KEYS)
@pytest.mark.parametrize("odd", _ODD, ids=repr)
def test_numbers_of_a_jvm(key: str, odd: Any) -> None:
    right = fleets.facts(3.0 * fleets.MIB, 10, "1")
    data = _reported(replace(right, jvm={**(right.jvm or {}), key: odd}))
    page.render(data)
    ticket.render(data)
    assert all(isinstance(size, (int, type(None))) for size in data["units"][0]["hosts"][0]["points"]["heap"])


@pytest.mark.parametrize("odd", [{"Class": "x"}, {"Class": -1}, {"Class": 1 << 70}, {"": 1}, {"x" * 4000: 1}], ids=repr)
def test_what_a_jvm_has_tracked(odd: dict[str, Any]) -> None:
    right = fleets.facts(3.0 * fleets.MIB, 10, "1")
    page.render(_reported(replace(right, jvm={**(right.jvm or {}), "nmt": odd})))


@pytest.mark.parametrize("key", ["rss", "rss_file", "rss_shmem", "allocated", "active", "metadata", "resident", "left"])
@pytest.mark.parametrize("odd", _ODD, ids=repr)
def test_the_memory_that_an_agent_told(key: str, odd: Any) -> None:
    right = fleets.facts(3.0 * fleets.MIB, 10, "1")
    agent = dict(right.agent or {})
    agent["memory"] = {**agent["memory"], key: odd}
    data = _reported(replace(right, agent=agent))
    page.render(data)
    assert all(isinstance(size, (int, type(None))) for size in data["units"][0]["hosts"][0]["points"]["rss"])
