# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What take_evidence says where no host, or none of the inventory, is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.conftest import COLLECTIONS


@pytest.mark.parametrize("host", [None, "", "app9"])
def test_a_host_has_to_be_named(tmp_path: Path, host: str | None) -> None:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local"]
    command += ["offheap.profiler.take_evidence", "-e", "offheap_units=frontend"]
    command += [] if host is None else ["-e", f"offheap_hosts={host}"]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_NOCOLOR": "1", "COLUMNS": "400"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 2
    assert f"offheap_hosts is '{host or ''}', which is no host of the inventory (-i)." in said
    assert "undefined" not in said
