# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which hosts a command line names. Fabric itself parses it, and has other meanings for these letters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NONE = "no host of the inventory matches 'nosuch'"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.ini"
    path.write_text("[web]\napp1 ansible_host=192.0.2.1\n")
    return path


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-i {} --limit nosuch status", NONE),
        ("--limit=nosuch -i {} status", NONE),
        ("-i {} status --limit nosuch", NONE),
        ("status -i {} --limit nosuch", NONE),
        ("-i {} --limit nosuch status --limit unknown", "no host of the inventory matches 'unknown'"),
        ("-H app1 --limit web status", "name hosts with -H, or an inventory"),
        ("-H app1 -i {} status", "name hosts with -H, or an inventory"),
        ("-i {} dump", "name the service with --unit"),
    ],
)
def test_hosts_and_limits(inventory: Path, line: str, says: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("fab"), *line.format(inventory).split()],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
