# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a purge leaves of our directories: none that is empty, and any that holds something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.conftest import ROOT


@pytest.mark.parametrize("held", ["", "tracing/4711-1"])
def test_empty_directories_go(tmp_path: Path, held: str) -> None:
    below = tmp_path / "run"
    for name in filter(None, ("tracing", "taking", held)):
        (below / name).mkdir(parents=True, exist_ok=True)
    last = yaml.safe_load((ROOT / "roles" / "jemalloc" / "tasks" / "remove.yml").read_text())[-1]
    known = {"_jemalloc_root": f"{tmp_path}/opt/x", "ansible_python_interpreter": sys.executable}
    play = {"hosts": "localhost", "gather_facts": False, "vars": known, "tasks": [last]}
    book = tmp_path / "play.yml"
    book.write_text(json.dumps([play]).replace("/run/offheap", str(below)))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", str(book)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [str(path.relative_to(below)) for path in below.rglob("*")] == (["tracing", held] if held else [])
    assert below.exists() is bool(held)
