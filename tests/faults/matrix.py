# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The matrix: every fault, how it is injected, under which action, and what the run must say.

One table, in chapters: see the files in rows/.
"""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.offheap.profiler.tests.faults.rows import drop_ins, hosts, runs, services, spools, units

MATRIX = [
    replace(fault, unit=fault.unit or f"fault-{number:03}.service")
    for number, fault in enumerate([*services.ROWS, *units.ROWS, *drop_ins.ROWS, *spools.ROWS, *runs.ROWS, *hosts.ROWS])
]
