# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Some seconds of coverage-guided fuzzing of each reader; ``make soak`` shares ten million inputs out among them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Seconds without OFFHEAP_FUZZ_INPUTS, and the part of these inputs that the reader gets, of a hundred: less where
# an input is many, or is read by many.
READERS = {
    ("on_controller", "dump"): (12, 5),
    ("on_controller", "unknown"): (8, 1),
    ("on_controller", "maps"): (2, 8),
    ("on_controller", "elf"): (3, 8),
    ("on_controller", "facts"): (3, 8),
    ("on_controller", "wire"): (2, 8),
    ("on_controller", "lives"): (3, 8),
    ("on_controller", "holders"): (3, 8),
    ("on_controller", "perf-map"): (2, 8),
    ("on_controller", "transfer"): (2, 3),
    ("on_target", "recording"): (3, 8),
    ("on_target", "sidecar"): (3, 8),
    ("on_target", "image"): (3, 7),
    ("on_target", "spooled"): (3, 4),
    ("on_target", "proc"): (4, 2),
    ("on_target", "jvm"): (3, 3),
    ("on_target", "answer"): (2, 3),
}
INPUTS = int(os.environ.get("OFFHEAP_FUZZ_INPUTS", "0"))
# The fuzzer's own memory grows with the inputs of a process. The next one goes on with what the last one has found.
AT_ONCE = 250_000


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids="-".join)
def test_no_input_breaks_the_reader(tmp_path: Path, reader: tuple[str, str]) -> None:
    seconds, part = READERS[reader]
    inputs = INPUTS * part // 100
    rounds = -(-inputs // AT_ONCE) or 1
    limit = f"-runs={-(-inputs // rounds)}" if inputs else f"-max_total_time={seconds}"
    done = sum(_inputs(tmp_path, reader, limit) for _round in range(rounds))
    print(f"{reader}: {done} inputs")
    assert done >= (inputs or 200)


def _inputs(directory: Path, reader: tuple[str, str], limit: str) -> int:
    """How many one process has tried. A failure says what its seed was and which input it was."""
    command = [sys.executable, str(Path(__file__).with_name("parser.py")), *reader, str(directory / "corpus"), limit]
    result = subprocess.run(
        [*command, f"-artifact_prefix={directory}/"],
        env={**os.environ, "TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    runs = re.findall(r"^#(\d+)\s+DONE", result.stderr, re.MULTILINE)
    raised = result.stderr.partition("Uncaught Python exception")[2][:4000]
    said = re.findall(r"^(?:INFO: Seed: .*|.*Test unit written to .*|Base64: .*)$", result.stderr, re.MULTILINE)
    assert result.returncode == 0 and runs, "\n".join([*said, raised or result.stderr[-4000:]])
    return int(runs[-1])
