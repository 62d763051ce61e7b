# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Command lines of services and tools as people write them, with secrets where they put them: none is kept."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import command_line

SECRETS = [
    "geheim",
    "AKIAGEHEIM7EXAMPLE",
    "ghp_geheim0123456789abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.geheim.c2lnbmF0dXJl",
    "geheim/wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY=",
    "p@ss:geheim!",
    "-geheim",
]
_TEXT = Path(__file__).with_name("command_lines.txt").read_text()
LINES = [line for line in _TEXT.splitlines() if not line.startswith("#")]


def words_of(line: str, secret: str) -> list[str]:
    """A line's words as a process has them, with that secret. A title that a program wrote is one word."""
    is_title = line.partition(" ")[0].endswith(":")
    return [line.replace("{}", secret)] if is_title else [word.replace("{}", secret) for word in shlex.split(line)]


def test_there_are_enough() -> None:
    assert len(set(LINES)) == len(LINES) >= 300


@pytest.mark.parametrize("line", LINES)
def test_no_secret_of_it_is_kept(line: str) -> None:
    for secret in SECRETS:
        words = words_of(line, secret)
        kept = command_line.known_words(words)
        assert words != kept and len(words) == len(kept)
        assert "geheim" not in "".join(kept).lower(), kept
        assert kept[0].split()[0] == words[0].split()[0], "the program is"
