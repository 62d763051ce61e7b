# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which units switch_profiling asks where none is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS, ROOT


def test_a_unit_whose_agent_could_make_no_socket_is_asked(tmp_path: Path) -> None:
    """It listens at an abstract name, so that its directory is empty."""
    for name in ("web.service", "tracing", "taking"):
        (tmp_path / "run" / name).mkdir(parents=True)
    book = tmp_path / "play.yml"
    book.write_text(
        (ROOT / "playbooks" / "switch_profiling.yml").read_text().replace("/run/offheap", f"{tmp_path}/run")
    )
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", str(book)]
    given = {"state": "dump", "ansible_become": "false", "ansible_python_interpreter": sys.executable}
    command += [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "no process of web.service has an agent that answers" in done.stdout + done.stderr
    assert "tracing" not in done.stdout
