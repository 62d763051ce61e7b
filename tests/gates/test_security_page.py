# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""docs/security.md claims what tests show: those that it names exist."""

from __future__ import annotations

import re

from ansible_collections.offheap.profiler.tests.gates.files import ROOT

NAMED = set(re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8")))


def test_what_it_names_exists() -> None:
    assert len(NAMED) > 10
    assert sorted(name for name in NAMED if not (ROOT / name).is_file()) == []
