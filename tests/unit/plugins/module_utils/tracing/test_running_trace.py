# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A signal ends a trace where nothing is half done."""

from __future__ import annotations

import os
import signal
import time

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.tracing import running_trace


def _ticks(seconds: float) -> int:
    return sum(1 for _tick in running_trace.ticks(time.monotonic() + seconds))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_step_is_done_to_its_end_and_the_next_wait_ends_the_trace(number: int) -> None:
    done = []
    with running_trace.interruptible():
        assert _ticks(0.1) == 1
        os.kill(os.getpid(), number)
        done.append("the step")
        with pytest.raises(running_trace.Ended, match=rf"interrupted \(signal {int(number)}\)"):
            _ticks(20)
        with pytest.raises(running_trace.Ended):
            _ticks(0)
    assert done == ["the step"]
    with running_trace.interruptible():
        assert _ticks(0.1) == 1, "the next trace knows nothing of it"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_in_a_fork_is_not_lost() -> None:
    """Python drops what is raised in the functions that it calls beside a fork."""
    os.register_at_fork(after_in_parent=_signal_once)
    _to_send.append(signal.SIGTERM)
    with running_trace.interruptible():
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(running_trace.Ended):
            _ticks(20)


_to_send: list[int] = []


def _signal_once() -> None:
    while _to_send:
        os.kill(os.getpid(), _to_send.pop())
