# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Coverage-guided fuzzing of what reads the bytes that hosts send, and what services leave for root to read.

    parser.py on_controller|on_target READER [CORPUS ...] [-runs=N] [-max_total_time=SECONDS] [other libFuzzer options]

Where it reads (on_controller.py, on_target.py) and what is the reader: each says in its TARGETS what it takes the bytes
for.

Whatever the bytes are, there is a result or an error of ours. An input that takes one reader a second of CPU time or
256 MiB more than all before it, or the process to 512 MiB, ends the run. Python code is measured by atheris, which
knows which branches an input took.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".cache" / "collections"))

import atheris

from ansible_collections.offheap.profiler.tests.fuzz.one_input import Target

_OURS = "ansible_collections.offheap.profiler.plugins"
with atheris.instrument_imports(include=[f"{_OURS}.plugin_utils", f"{_OURS}.module_utils"]):
    readers = importlib.import_module(f"ansible_collections.offheap.profiler.tests.fuzz.{sys.argv[1]}")


def main() -> None:
    target: Target = readers.TARGETS[sys.argv[2]]
    corpora = [Path(name) for name in sys.argv[3:] if not name.startswith("-")]
    for corpus in corpora[:1]:
        corpus.mkdir(parents=True, exist_ok=True)
        for name, seed in target.seeds().items():
            (corpus / name).write_bytes(seed)
    limits = ["-timeout=30", "-rss_limit_mb=512", "-print_final_stats=1", "-max_len=65536"]
    dictionary = Path(__file__).with_name("heap_v2.dict")
    more = {"custom_mutator": target.mutate} if target.mutate else {}
    atheris.Setup([sys.argv[0], *limits, f"-dict={dictionary}", *sys.argv[3:]], target.read, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
