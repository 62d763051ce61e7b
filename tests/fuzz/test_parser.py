# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Half a minute of coverage-guided fuzzing of the dump reader; ``make soak`` gives it a million inputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = int(os.environ.get("OFFHEAP_FUZZ_SECONDS", "30"))
INPUTS = int(os.environ.get("OFFHEAP_FUZZ_INPUTS", "0"))


@pytest.mark.slow
def test_no_input_breaks_the_reader(tmp_path: Path) -> None:
    limit = f"-runs={INPUTS}" if INPUTS else f"-max_total_time={SECONDS}"
    command = [sys.executable, str(Path(__file__).with_name("parser.py")), str(tmp_path / "corpus"), limit]
    result = subprocess.run(
        [*command, f"-artifact_prefix={tmp_path}/"], capture_output=True, text=True, errors="replace", check=False
    )
    done = re.search(r"Done (\d+) (?:runs )?in (\d+) second|DONE", result.stderr)
    assert result.returncode == 0 and done, result.stderr[-4000:]
    runs = re.findall(r"^#(\d+)\s", result.stderr, re.MULTILINE)
    print(f"{runs[-1] if runs else '?'} inputs")
    assert runs and int(runs[-1]) >= min(1000, INPUTS or 1000), result.stderr[-2000:]
