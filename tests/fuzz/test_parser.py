# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Some seconds of coverage-guided fuzzing of each reader; ``make soak`` gives each three million inputs, and the
recognition of files, which is tried with each input many times over, a hundred thousand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = {"dump": 20, "unknown": 10, "maps": 4, "elf": 4, "facts": 4, "wire": 4, "recording": 4, "lives": 4}
INPUTS = int(os.environ.get("OFFHEAP_FUZZ_INPUTS", "0"))
SHARE = {"unknown": 30}
# The fuzzer's own memory grows with the inputs of a process. The next one goes on with what the last one has found.
AT_ONCE = 250_000


@pytest.mark.slow
@pytest.mark.parametrize("target", SECONDS)
def test_no_input_breaks_the_reader(tmp_path: Path, target: str) -> None:
    inputs = INPUTS // SHARE.get(target, 1)
    rounds = -(-inputs // AT_ONCE) or 1
    limit = f"-runs={-(-inputs // rounds)}" if inputs else f"-max_total_time={SECONDS[target]}"
    done = sum(_inputs(tmp_path, target, limit) for _round in range(rounds))
    print(f"{target}: {done} inputs")
    assert done >= (inputs or 500)


def _inputs(directory: Path, target: str, limit: str) -> int:
    """How many one process has tried."""
    command = [sys.executable, str(Path(__file__).with_name("parser.py")), target, str(directory / "corpus"), limit]
    result = subprocess.run(
        [*command, f"-artifact_prefix={directory}/"], capture_output=True, text=True, errors="replace", check=False
    )
    runs = re.findall(r"^#(\d+)\s+DONE", result.stderr, re.MULTILINE)
    raised = result.stderr.partition("Uncaught Python exception")[2][:4000]
    assert result.returncode == 0 and runs, raised or result.stderr[-4000:]
    return int(runs[-1])
