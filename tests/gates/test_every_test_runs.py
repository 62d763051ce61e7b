# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The gates name files of tests on booted hosts one by one: none is forgotten."""

from __future__ import annotations

import runpy
from pathlib import Path

from ansible_collections.offheap.profiler.tests.gates.files import ROOT


def test_every_file_of_integration_tests_is_in_a_gate() -> None:
    gates = runpy.run_path(str(ROOT / "tests" / "gates" / "run"))["GATES"]
    whole = [gate for gate in gates if "-k" not in gate.command or not gate.command[gate.command.index("-k") + 1]]
    named = {word for gate in whole for word in gate.tests if word.startswith("tests/integration/test_")}
    assert named == {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "integration").glob("test_*.py")}


def test_a_gate_boots_its_lab_once() -> None:
    """Each conftest.py boots the lab behind a lock: two of them in one run wait for each other for ever."""
    gates = runpy.run_path(str(ROOT / "tests" / "gates" / "run"))["GATES"]
    booting = {"tests/faults", "tests/integration"}
    for gate in gates:
        if gate.lab:
            directories = {str(Path(name).parent) if name.endswith(".py") else name for name in gate.tests}
            assert len(directories & booting) == 1, f"{gate.name}: {directories}"
