# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Each benchmark starts in a fresh clone, after no more than what setup does there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT

BENCHES = re.findall(r"^\t\.venv/bin/python (tests/bench/\w+\.py)", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a directory that is the owner's alone, as root's home is."""
    directory = tmp_path_factory.mktemp("clone", numbered=False)
    subprocess.run([str(ROOT / "tests" / "gates" / "tree.sh"), str(directory)], cwd=ROOT, check=True)
    path = directory / "ansible_collections" / "offheap" / "profiler"
    (path / ".venv").symlink_to(ROOT / ".venv")
    return path


def test_setup_makes_the_name_to_import() -> None:
    assert ".venv/bin/python tests/conftest.py" in (ROOT / "tests" / "gates" / "setup.sh").read_text().splitlines()


@pytest.mark.parametrize("bench", BENCHES)
def test_a_bench_starts(clone: Path, bench: str) -> None:
    subprocess.run([".venv/bin/python", "tests/conftest.py"], cwd=clone, check=True)
    done = subprocess.run(
        [".venv/bin/python", bench, "--help"], cwd=clone, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr


def test_there_are_benches() -> None:
    assert len(BENCHES) >= 8
