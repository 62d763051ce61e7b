# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Boots the lab for the matrix of faults, in an order that a seed repeats, and sums up what held.

OFFHEAP_FAULTS_SEED is the seed; 0, the default, keeps the order of the table.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from ansible_collections.offheap.profiler.tests.integration.conftest import (  # noqa: F401  # pylint: disable=unused-import
    booted_lab,
    collection,
    controller,
    host,
    lab,
    playbook,
)

SEED = int(os.environ.get("OFFHEAP_FAULTS_SEED", "0"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker("lab")
    if SEED:
        random.Random(SEED).shuffle(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many faults of each kind held."""
    held: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            kind = dict(report.user_properties).get("kind")
            if kind is None or (outcome == "passed" and report.when != "call"):
                continue
            tried[str(kind)] += 1
            held[str(kind)] += outcome == "passed"
    terminalreporter.section(f"faults (seed {SEED})")
    for kind, count in sorted(tried.items()):
        terminalreporter.write_line(f"{kind:12} {held[kind]} of {count} held")
    terminalreporter.write_line(f"{'all':12} {held.total()} of {tried.total()} held")
