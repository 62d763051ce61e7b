# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The agent's own code under the sanitizers, with clients, dumps, forks and threads at once."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.tests.agent.conftest import compiled, driver_sources
from ansible_collections.offheap.profiler.tests.agent.service import wait_for


@pytest.mark.soak
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("forking", [False, True], ids=["threads", "forks"])
def test_clean(tmp_path: Path, soak_seconds: float, sanitizer: str, forking: bool) -> None:
    name = "driver-" + sanitizer.split(",")[0]
    program = compiled(name, driver_sources(), "-O1", f"-fsanitize={sanitizer}")
    (tmp_path / "run").mkdir()
    environment = {
        "OFFHEAP_EXECUTABLE": str(program),
        "OFFHEAP_UNIT": "tried",
        "OFFHEAP_SOCKET_DIR": f"{tmp_path}/run/tried",
        "OFFHEAP_START_DELAY": "0",
        "OFFHEAP_DUMP_SECONDS": "1",
        "OFFHEAP_STATS_SECONDS": "1",
        "OFFHEAP_KEEP_FILES": "4",
        "OFFHEAP_MINIMUM_FREE": "0",
        "FAKE_PREFIX": f"{tmp_path}/jeprof",
        "UBSAN_OPTIONS": "halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    (tmp_path / "run" / "tried").mkdir()
    command = [str(program), str(soak_seconds), *(["fork"] if forking else [])]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    answers = 0
    with contextlib.suppress(client.AgentGone, FileNotFoundError):
        agent = wait_for("a socket", lambda: client.find("tried", f"{tmp_path}/run"))[0]
        while process.poll() is None:
            with client.Connection(agent) as connection:
                for words in ("status", "dump", "stats", "deactivate", "activate", "reset", "nonsense"):
                    with contextlib.suppress(client.AgentError):
                        connection.request(words)
                        answers += 1
                with contextlib.suppress(client.AgentError):
                    connection.request("schedule", dump=1, keep_files=3)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "wrong 0" in output
    assert answers > 10
    assert len(list(tmp_path.glob("jeprof.*.heap"))) <= 4
