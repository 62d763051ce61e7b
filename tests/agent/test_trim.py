# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The allocator gives back what it keeps when it is asked, and the dumps before and after tell what that was."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.tests.agent.conftest import service_program
from ansible_collections.offheap.profiler.tests.agent.service import Service

Start = Callable[..., Service]
MIB = 1 << 20


@pytest.fixture(params=["jemalloc", "sampler"])
def keeping(
    request: pytest.FixtureRequest, start: Start, jemalloc: Path, library: Path, tmp_path: Path
) -> Callable[..., Service]:
    """A service that keeps 128 MiB of what it has freed."""

    def begin(**settings: Any) -> Service:
        if request.param == "jemalloc":
            settings |= {"preload": [jemalloc, library], "conf": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
        else:
            settings |= {"preload": [library], "prefix": tmp_path / "spool" / "jeprof"}
        service = start(service_program("keeps"), "128", popen={"stdin": subprocess.PIPE}, **settings)
        service.wait_until_active()
        assert service.do("") == "done"
        return service

    return begin


def test_what_is_kept_is_given_back(keeping: Callable[..., Service]) -> None:
    service = keeping()
    told = service.ask("trim")
    before, after = told["before"]["memory"]["rss"], told["after"]["memory"]["rss"]
    assert told["given_back"] and before > 128 * MIB and after < 32 * MIB
    sidecars = [json.loads(Path(f"{dump}.json").read_text()) for dump in service.dumps()]
    assert [(one["reason"], one["memory"]["rss"] > 64 * MIB) for one in sidecars] == [
        ("before-trim", True),
        ("trim", False),
    ]
    assert told["path"] == str(service.dumps()[-1])


def test_where_no_dump_can_be_written_nothing_is_given_back(keeping: Callable[..., Service]) -> None:
    service = keeping(minimum_free=1 << 60)
    with pytest.raises(client.AgentError, match="bytes free; a dump of"):
        service.ask("trim")
    assert service.ask("stats")["memory"]["rss"] > 128 * MIB
