# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller is interrupted in the middle of a run, which must then succeed when it is run again."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault

MOMENTS = {
    "enable": "Write the drop-ins",
    "collect": "Bring new captures",
    "rollback": "Take the profiler out of each unit",
    "purge": "Remove each spool",
}


def row(do: str, signal: str, **more: object) -> Fault:
    name = f"the controller gets {signal} at '{MOMENTS[do]}'"
    return Fault(name, "controller", do, at=MOMENTS[do], signal=signal, **more)  # type: ignore[arg-type]


ROWS = [
    row("enable", "SIGKILL", everyday=True),
    *[row("enable", name) for name in ("SIGINT", "SIGTERM")],
    *[row(do, name) for do in ("collect", "rollback", "purge") for name in ("SIGKILL", "SIGINT", "SIGTERM")],
]
