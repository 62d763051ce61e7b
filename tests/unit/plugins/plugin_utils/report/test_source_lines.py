# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A C program with debug information in an archive: the report says where in the source its suspect is."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.action import leak_report
from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import KnownImage
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives
from ansible_collections.offheap.profiler.tests.unit.strategies.heap_dumps import (
    DescribedDump,
    DescribedMapping,
    DescribedStack,
)

SOURCE = """\
#include <stdlib.h>
__attribute__((noinline)) void *keep(int size) {
    return malloc(size);
}
__attribute__((noinline)) void *serve(int size) {
    void *one = keep(size);
    void *other = keep(size + 1);
    return one > other ? one : other;
}
int main(void) {
    return serve(3) == NULL;
}
"""
DUMPS, BASE, MODULE = 12, 0x550000000000, "/srv/shop"


def _returns(program: Path) -> dict[str, list[int]]:
    """Where the calls of each function return to, as linked."""
    text = subprocess.run(["objdump", "-d", program], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[int]] = {}
    function, called = "", False
    for line in text.splitlines():
        if head := re.match(r"[0-9a-f]+ <(\w+)>:", line):
            function = head[1]
        elif at := re.match(r" +([0-9a-f]+):", line):
            if called:
                found.setdefault(function, []).append(int(at[1], 16))
            called = re.search(r"\tcall", line) is not None
    return found


@pytest.fixture(params=["debug information", "stripped"])
def reported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[bool, dict[str, Any], Path]:
    """Whether the program has debug information, what leak_report returned of it, and its directory."""
    (tmp_path / "shop.c").write_text(SOURCE)
    program = tmp_path / "shop"
    subprocess.run(["gcc", "-g", "-O1", "-Wl,--build-id", "-o", program, "shop.c"], check=True, cwd=tmp_path)
    at = _returns(program)
    with_lines = request.param != "stripped"
    if not with_lines:
        subprocess.run(["strip", "--strip-debug", program], check=True)
    build_id = ElfImage(program).build_id
    assert build_id
    archive = Archive.create(tmp_path / "archive")
    archive.add_image(build_id, program.name, program)
    image = KnownImage(MODULE, build_id, program.stat().st_size, hashlib.sha256(program.read_bytes()).hexdigest())
    for number in range(DUMPS):
        stacks = [
            DescribedStack([BASE + at["keep"][0], BASE + call, BASE + at["main"][0]], (count, 4096 * count, 0, 0), [])
            for call, count in zip(at["serve"], (10 + 5 * number, 30), strict=True)
        ]
        mappings = [DescribedMapping(BASE, 1 << 20, "r-xp", 0, MODULE, False)]
        content = DescribedDump(leaky_archives.INTERVAL, stacks=stacks, mappings=mappings).text()
        facts = leaky_archives.facts(content, "app1", number, leaky_archives.START + 300.0 * number)
        (tmp_path / "dump").write_bytes(content)
        archive.add_capture(replace(facts, images=(image,)), tmp_path / "dump")
    result = run_action(leak_report, archive=str(archive.root), dest=str(tmp_path / "report"), show=False)
    return with_lines, result, tmp_path


def test_it_is_said_by_the_task_and_in_each_of_its_files(reported: tuple[bool, dict[str, Any], Path]) -> None:
    with_lines, result, directory = reported
    (suspect,) = result["reports"][0]["suspects"]
    assert suspect["path"] == ["keep", "serve", "main"]
    file = directory / "shop.c"
    expected = [f"{file}:3", f"{file}:6, 7", f"{file}:11"] if with_lines else ["", "", ""]
    assert suspect["sources"] == expected
    fleet = json.loads((directory / "report" / "report.json").read_text())["units"][0]
    assert fleet["suspects"][0]["sources"] == fleet["hosts"][0]["suspects"][0]["sources"] == expected
    for name in ("report.txt", "frontend.service/app1.txt"):
        text = (directory / "report" / name).read_text()
        assert (f" serve  ({file}:6, 7)\n" in text) == with_lines
    for page in ("report.html", "frontend.service/app1.html"):
        assert (f'["{file}",7]' in (directory / "report" / page).read_text()) == with_lines
