# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller is interrupted in the middle of a run, which must then succeed when it is run again.

test_units_of_one_host.py tries this whenever tests run.
"""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.faults.fault import Fault

MOMENTS = {
    "enable": "Write the drop-ins",
    "collect": "Bring new captures",
    "rollback": "Take the profiler out of each unit",
    "purge": "Remove each spool",
}


def row(do: str, signal: str) -> Fault:
    name = f"the controller gets {signal} at '{MOMENTS[do]}'"
    return Fault(name, "controller", do, at=MOMENTS[do], signal=signal)


ROWS = [
    *[row(do, name) for do in MOMENTS for name in ("SIGKILL", "SIGINT", "SIGTERM")],
]
