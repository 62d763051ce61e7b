# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who is hurried is calm again afterwards, whatever becomes of who hurried it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.tracing import urgency

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process.pid
        process.kill()


def test_calm_is_as_it_was(sleeper: int) -> None:
    os.setpriority(os.PRIO_PROCESS, sleeper, 7)
    os.sched_setscheduler(sleeper, os.SCHED_BATCH, os.sched_param(0))
    before = urgency.hurry(sleeper)
    assert before is not None
    assert os.sched_getscheduler(sleeper) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
    urgency.calm(sleeper, before)
    assert os.sched_getscheduler(sleeper) == os.SCHED_BATCH
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 7


def test_who_is_killed_leaves_it_calm(sleeper: int) -> None:
    with urgency.calm_afterwards(sleeper):
        urgency.hurry(sleeper)
    assert os.sched_getscheduler(sleeper) == os.SCHED_OTHER


def test_what_has_a_priority_of_its_own_keeps_it(sleeper: int) -> None:
    os.sched_setscheduler(sleeper, os.SCHED_FIFO, os.sched_param(3))
    with urgency.calm_afterwards(sleeper):
        assert urgency.hurry(sleeper) is None
    assert (os.sched_getscheduler(sleeper), os.sched_getparam(sleeper).sched_priority) == (os.SCHED_FIFO, 3)
