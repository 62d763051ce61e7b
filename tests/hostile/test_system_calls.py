# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""docs/system_calls.md has each kind of call that our code makes on a host, and no other."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.hostile import system_calls

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the page is of x86_64"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach"),
]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[system_calls.Calls]:
    directory = tmp_path_factory.mktemp("calls")
    with pytest.MonkeyPatch.context() as patch, system_calls.calls(directory, patch) as found:
        yield found


@pytest.mark.parametrize("task", system_calls.TASKS)
def test_the_page_has_what_is_called(calls: system_calls.Calls, task: str) -> None:
    found, listed = calls.of(system_calls.TASKS[task]), system_calls.listed()[task]
    assert sorted(found - listed) == [], f"is missing in {system_calls.PAGE}, which system_calls.py writes"
    assert sorted(listed - found) == [], "was not called"


def test_a_call_that_is_not_plain_is_seen(tmp_path: Path) -> None:
    """Of the program itself, of its children, and of a descriptor's file; not of other programs that it runs."""
    code = f"""
import subprocess
BEGIN
os.mkdir({str(tmp_path / "made")!r})
if os.fork() == 0:
    os.kill(os.getpid(), 0)
    os._exit(0)
os.wait()
fd = os.open({str(tmp_path / "made")!r}, os.O_RDONLY | os.O_DIRECTORY)
os.mkdir("below", dir_fd=fd)
subprocess.run(["mkdir", {str(tmp_path / "theirs")!r}], check=True)
"""
    found = system_calls.told(system_calls.traced(code, tmp_path), {str(tmp_path): "/here"})
    assert {("mkdir", "/here/made"), ("mkdir", "/here/made/below"), ("kill", "0"), ("execve", "mkdir")} <= found
    assert ("mkdir", "/here/theirs") not in found
