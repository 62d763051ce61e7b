# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Fuzz readers of files that people have, each with as many inputs, and tell what came of them.

    table.py [-n INPUTS] [READER ...]

The readers are those of on_controller.py; all of its FILES if none is given. For each there is, also in
build/fuzz/files.json: inputs, how many of them were read and refused, seconds of CPU time of the slowest, and the MiB
that a process had at most, with what the fuzzer itself needs. Exits with status 1 if an input breaks a reader.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.tests.fuzz import on_controller, one_input

RESULTS = ROOT / "build" / "fuzz" / "files.json"
# The fuzzer's own memory grows with the inputs of a process: with a mutator of ours, to 512 MiB with 200,000 of them.
# The next process goes on with what the last one has found.
AT_ONCE = 100_000
_LINE = "{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}"


class BrokenReader(Exception):
    """An input broke a reader. The message says what the fuzzer's seed was, and which input it was."""


@dataclass(frozen=True)
class Came:
    """What came of the inputs of a process, or of some together."""

    inputs: int
    read: int
    refused: int
    slowest: float
    peak: int


def tried(directory: Path, reader: tuple[str, str], inputs: int, seconds: int = 0) -> Came:
    """That many inputs, or some for that long; ``directory`` keeps what was found. Raises BrokenReader."""
    rounds = -(-inputs // AT_ONCE) or 1
    limit = f"-runs={-(-inputs // rounds)}" if inputs else f"-max_total_time={seconds}"
    came = [_round(directory, reader, limit) for _number in range(rounds)]
    return Came(
        inputs=sum(one.inputs for one in came),
        read=sum(one.read for one in came),
        refused=sum(one.refused for one in came),
        slowest=max(one.slowest for one in came),
        peak=max(one.peak for one in came),
    )


def _round(directory: Path, reader: tuple[str, str], limit: str) -> Came:
    command = [sys.executable, str(HERE / "parser.py"), *reader, str(directory / "corpus"), limit]
    with tempfile.NamedTemporaryFile(dir=directory) as tally:
        result = subprocess.run(
            [*command, f"-artifact_prefix={directory}/"],
            env={**os.environ, "TMPDIR": str(directory), one_input.TALLY: tally.name},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        told = tally.read()
    counts = [
        re.findall(pattern, result.stderr, re.MULTILINE) for pattern in (r"^#(\d+)\s+DONE", r"peak_rss_mb: +(\d+)")
    ]
    if result.returncode or not all(counts):
        raised = result.stderr.partition("Uncaught Python exception")[2][:4000]
        said = re.findall(r"^(?:INFO: Seed: .*|.*Test unit written to .*|Base64: .*)$", result.stderr, re.MULTILINE)
        raise BrokenReader("\n".join([*said, raised or result.stderr[-4000:]]))
    (inputs, *_), (peak, *_) = counts
    read, refused, slowest = struct.unpack("3d", told)
    return Came(int(inputs), int(read), int(refused), round(slowest, 3), int(peak))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=1_000_000, metavar="INPUTS")
    parser.add_argument("readers", nargs="*", metavar="READER")
    options = parser.parse_args()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, float]] = {}
    broken = 0
    print(_LINE.format("reader", "inputs", "read", "refused", "slowest", "peak"), flush=True)
    for reader in options.readers or on_controller.FILES:
        directory = RESULTS.parent / reader
        directory.mkdir(exist_ok=True)
        try:
            found[reader] = asdict(came := tried(directory, ("on_controller", reader), options.n))
        except BrokenReader as error:
            broken += 1
            print(f"{reader} broke:\n{error}", flush=True)
            continue
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        row = (reader, came.inputs, came.read, came.refused, f"{came.slowest:.3f} s", f"{came.peak} MiB")
        print(_LINE.format(*row), flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
