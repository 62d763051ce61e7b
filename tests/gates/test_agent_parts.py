# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The parts of the agent in C: each includes only parts on lower floors, so there are no circles."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT

AGENT = ROOT / "roles" / "jemalloc" / "files" / "agent"
FLOORS = (  # the lowest first; a part is <name>.c with <name>.h
    {"clock", "descriptors", "exec", "hotspot", "loader", "mallctl", "probes", "readable"},
    {"got"},
    {"blocks", "book", "deepbind", "epolls", "goroutine", "json", "maps", "objects", "pages", "threads"},
    {"ranges", "reach", "sampler"},
    {"cfi", "feeder", "roots"},
    {"cost", "unwind"},
    {"config"},
    {"facts", "holders", "images", "ledger", "problem", "spool"},
    {"others"},
    {"dump", "sampling", "schedule", "statistics", "trigger"},
    {"command"},
    {"control"},
    {"agent"},
)
FLOOR_OF = {part: number for number, parts in enumerate(FLOORS) for part in parts}


def includes(source: Path) -> list[str]:
    """Names in the #include "..." lines of a file, in their order."""
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', source.read_text(), re.MULTILINE)


def wrong_arrows(folder: Path) -> list[str]:
    """Each "<file> -> <header>" that does not lead to a lower floor; a part may include its own header."""
    wrong = []
    for source in sorted(folder.glob("*.[ch]")):
        for header in includes(source):
            part, used = source.stem, header.removesuffix(".h")
            if part != used and not FLOOR_OF.get(used, len(FLOORS)) < FLOOR_OF.get(part, -1):
                wrong.append(f"{source.name} -> {header}")
    return wrong


def test_every_part_has_a_floor() -> None:
    assert {path.stem for path in AGENT.glob("*.[ch]")} == set(FLOOR_OF)


def test_a_part_includes_only_what_is_below_it() -> None:
    assert wrong_arrows(AGENT) == []


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("problem.c", "control.h"),  # up
        ("spool.h", "dump.h"),  # up, and a circle with dump.h -> spool.h
        ("dump.c", "sampling.h"),  # to its own floor, one line away from a circle
        ("json.c", "offheap.h"),  # to a file that is not a part
    ],
)
def test_a_wrong_arrow_is_found(tmp_path: Path, name: str, header: str) -> None:
    folder = shutil.copytree(AGENT, tmp_path / "agent")
    with (folder / name).open("a") as source:
        source.write(f'#include "{header}"\n')
    assert wrong_arrows(folder) == [f"{name} -> {header}"]


@pytest.mark.parametrize("source", sorted(AGENT.glob("*.c")), ids=lambda path: path.stem)
def test_a_part_has_a_header_of_its_own(source: Path) -> None:
    if source.stem == "agent":
        assert not source.with_suffix(".h").exists(), "nothing may include the whole agent"
        return
    assert includes(source)[0] == f"{source.stem}.h", "first, to prove that the header includes what it needs"
    assert "struct agent" not in source.read_text() + source.with_suffix(".h").read_text()
