# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What cannot be taken keeps nothing else from being collected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS


def test_where_a_profile_cannot_be_taken_processes_are_asked_and_what_is_new_is_brought(tmp_path: Path) -> None:
    given = {
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "heap_collect_offered": [{"unit": "../offers", "directory": "/nowhere"}],
        "heap_collect_holders": ["holds"],
        "heap_collect_units": ["../brings"],
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local"]
    command += ["-e", json.dumps(given), "offheap.profiler.collect_profiles"]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 2
    for words in (
        "'../offers' is not the name",
        "no process of holds.service has an agent",
        "'../brings' is not the name",
    ):
        assert words in said
