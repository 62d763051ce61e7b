# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A hunt without a host: a program leaks, the agent writes dumps, and the analysis says which path leaks, whatever
machine the library and the agent are built for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.analyze import analyze
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import Request
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import Places, open_reader
from ansible_collections.offheap.profiler.tests.agent.conftest import EMULATED
from ansible_collections.offheap.profiler.tests.agent.service import Service, wait_for

_ENOUGH = 2 << 20


def test_a_leak_is_named(start: Callable[..., Service], workload: Path, tmp_path: Path) -> None:
    service = start(workload, "leak", "120", conf="lg_prof_sample:14")
    service.wait_until_active()

    def live() -> dict[str, int]:
        """Bytes by path in a new dump, the outermost function first."""
        service.ask("dump")
        dump = service.dumps()[-1]
        if EMULATED:  # it reads the code that it emulates, and does not execute it
            dump.write_text(dump.read_text().replace(" r--p ", " r-xp "))
        with open_reader([dump], Places(binary_path=[workload], symcaches=tmp_path)) as reader:
            text = analyze(Request(kind="collapsed"), reader.read(dump), None, reader.images).content.decode()
        return {path: int(size) for path, _blank, size in (line.rpartition(" ") for line in text.splitlines())}

    first = live()
    last = wait_for("two megabytes", lambda: found if sum((found := live()).values()) > _ENOUGH else None, 60)
    (leaking,) = [path for path in last if path.endswith(";leak;leak_here")]
    assert last[leaking] > 0.9 * sum(last.values())
    assert first.get(leaking, 0) < last[leaking], "it grows"
