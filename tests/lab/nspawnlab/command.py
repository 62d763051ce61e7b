# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runs a program; if it fails, says which one and how its output ended."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .settings import LabError


def run(argv: Sequence[str | Path], check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` with captured text output.

    Raises LabError with the last lines of output if ``check`` is set and the program failed.
    """
    words = [str(word) for word in argv]
    done = subprocess.run(words, text=True, capture_output=True, input=stdin, check=False)
    if check and done.returncode != 0:
        tail = " | ".join((done.stdout + done.stderr).strip().splitlines()[-4:])
        raise LabError(f"{' '.join(words[:6])} failed with status {done.returncode}: {tail}")
    return done


def run_logged(argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run ``argv`` with all its output in the file ``log``; raises LabError with the log's last lines if it fails."""
    words = [str(word) for word in argv]
    with log.open("wb") as stream:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=env, check=False
        )
    if done.returncode != 0:
        tail = "\n    ".join(log.read_text(errors="replace").strip().splitlines()[-8:])
        raise LabError(f"{words[0]} failed with status {done.returncode}, see {log}:\n    {tail}")
