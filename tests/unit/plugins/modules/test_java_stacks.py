# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which of a unit's JVMs were asked, and why others were not; tests/integration asks real ones."""

from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes.hotspot_protocol import Jvm
from ansible_collections.offheap.profiler.plugins.modules import java_stacks
from ansible_collections.offheap.profiler.tests.unit.fakes.module_run import run_module
from ansible_collections.offheap.profiler.tests.unit.fakes.units import Systemctl, shown

_NONE, _CLOSED, _OPEN = 1, 2, 3


def _look(pid: int) -> Jvm:
    if pid == _NONE:
        raise hotspot_attach.NoJvm("process 1 has no libjvm.so: it is not a JVM")
    if pid == _CLOSED:
        raise hotspot_attach.NotHotspot("process 2 runs with -XX:+DisableAttachMechanism")
    return Jvm(pid, pid, 0, 0, 0, (), True)


@pytest.mark.parametrize(
    ("pids", "says"),
    [
        ([_NONE, _OPEN], []),
        ([_NONE, _CLOSED, _OPEN], ["process 2 runs with -XX:+DisableAttachMechanism"]),
        ([_NONE, _CLOSED], "has no JVM that can be asked: process 2 runs with -XX:+DisableAttachMechanism"),
        ([_NONE], "has no JVM that can be asked: process 1 has no libjvm.so"),
        ([], "has no JVM that can be asked, or any other process"),
    ],
)
def test_a_jvm_that_cannot_be_asked_is_told(
    pids: list[int],
    says: list[str] | str,
    systemctl: Systemctl,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hotspot_attach, "look", _look)
    monkeypatch.setattr(hotspot_attach, "command", lambda *_of: "")
    systemctl.states(shown("/usr/bin/java", Id="web.service", ActiveState="active", ControlGroup="/web.service"))
    systemctl.processes("/web.service", *pids)
    told = run_module(java_stacks.main, monkeypatch, capsys, False, unit="web", dumps=1)
    if isinstance(says, str):
        assert says in told["msg"]
    else:
        assert (told["problems"], told["taken"]) == (says, 1)
