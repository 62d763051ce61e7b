# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who is killed has it done by a child, from the first moment on; who leaves does not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.module_utils.tracing import last_act
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.tracing.conftest import wait


def test_a_group_that_is_killed_at_once(tmp_path: Path) -> None:
    done = [tmp_path / str(number) for number in range(50)]
    for path in done:
        child = os.fork()
        if child == 0:
            os.setsid()
            with last_act.if_killed(path.touch):
                os.killpg(0, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    wait(lambda: all(path.exists() for path in done), "each was done")


def test_who_leaves(tmp_path: Path) -> None:
    with last_act.if_killed((tmp_path / "done").touch):
        pass
    assert not (tmp_path / "done").exists()
