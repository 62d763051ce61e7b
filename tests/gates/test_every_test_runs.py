# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The gates name files of tests on booted hosts one by one: none is forgotten, and none runs twice."""

from __future__ import annotations

import runpy

from ansible_collections.offheap.profiler.tests.gates.files import ROOT


def test_every_file_of_integration_tests_is_in_one_gate() -> None:
    gates = runpy.run_path(str(ROOT / "tests" / "gates" / "run"))["GATES"]
    named = [word for gate in gates for word in gate.command if word.startswith("tests/integration/test_")]
    there = [str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "integration").glob("test_*.py")]
    assert sorted(named) == sorted(there)
