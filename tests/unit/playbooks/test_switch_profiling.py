# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which units switch_profiling asks where none is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS, ROOT


def _switched(directory: Path) -> str:
    """What the playbook says on a host with that directory in place of /run/offheap."""
    book = directory / "play.yml"
    book.write_text(
        (ROOT / "playbooks" / "switch_profiling.yml").read_text().replace("/run/offheap", f"{directory}/run")
    )
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", str(book)]
    given = {"state": "dump", "ansible_become": "false", "ansible_python_interpreter": sys.executable}
    command += [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_unit_whose_agent_could_make_no_socket_is_asked(tmp_path: Path) -> None:
    """It listens at an abstract name, so that its directory is empty."""
    for name in ("web.service", "tracing", "taking"):
        (tmp_path / "run" / name).mkdir(parents=True)
    said = _switched(tmp_path)
    assert "no process of web.service has an agent that answers" in said
    assert "tracing" not in said


def test_a_host_where_nothing_is_profiled_says_so_without_a_warning(tmp_path: Path) -> None:
    said = _switched(tmp_path)
    assert "No unit on this host has an agent, so nothing was done." in said and "failed=0" in said
    assert "WARNING" not in said
