# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which files a bare dump takes its names from, and what lies beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.sidecar import AgentFacts, JemallocFacts
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import FACTS
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import (
    THIS_MACHINE,
    Images,
    Places,
    open_reader,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.elf_image import ElfImage
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives

LIBRARY = next(Path("/usr/lib").glob("*/libc.so.6")).resolve()
OLD, NEW = f"1000-2000 r-xp 00000000 08:01 1 {LIBRARY} (deleted)", f"3000-4000 r-xp 00000000 08:01 2 {LIBRARY}"

HEAD = "heap_v2/524288\n  t*: 1: 4096 [0: 0]\n@ 0x1100\n  t*: 1: 4096 [0: 0]\n\nMAPPED_LIBRARIES:\n"


@pytest.mark.parametrize(
    ("mappings", "named"), [([NEW], True), ([OLD], False), ([OLD, NEW], False)], ids=["there", "deleted", "replaced"]
)
def test_a_replaced_file_does_not_lend_its_names_to_the_deleted_one(mappings: list[str], named: bool) -> None:
    """A build-id is that of the first mapping of its path (model/location.py), and nobody can tell that of the old."""
    dump = detect.parse((HEAD + "\n".join(mappings) + "\n").encode(), "a dump", Told())
    assert Images([THIS_MACHINE]).build_ids(dump) == ({str(LIBRARY): ElfImage(LIBRARY).build_id} if named else {})


def test_a_path_that_this_machine_lacks_is_not_another_file_of_that_name(tmp_path: Path) -> None:
    program = Path("/bin/true").resolve()
    mapping = f"1000-2000 r-xp 00000000 08:01 1 /nowhere/jre/{program.name}"
    dump = detect.parse(f"{HEAD}{mapping}\n".encode(), "a dump", Told())
    assert Images([THIS_MACHINE]).build_ids(dump) == {}
    named = Images([program.parent]).build_ids(dump)
    assert named == {f"/nowhere/jre/{program.name}": ElfImage(program).build_id}, "a directory that somebody named"


def test_a_path_with_dots_does_not_lead_out_of_the_directories_that_somebody_named(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").write_bytes(Path("/bin/true").read_bytes())
    mapping = "1000-2000 r-xp 00000000 08:01 1 /../outside"
    dump = detect.parse(f"{HEAD}{mapping}\n".encode(), "a dump", Told())
    assert Images([tmp_path / "root"]).build_ids(dump) == {}


def test_code_where_other_code_lay_earlier_has_no_names(tmp_path: Path) -> None:
    """As in a report: a stack may be of what was there before."""
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=1)
    capture = archive.captures(host="app1")[0]
    for reused, named in (([], {"inflate", "deflate"}), ([f"{leaky_archives.BASE:x}-7fffffffffff"], set())):
        agent = AgentFacts(None, None, None, None, None, None, {}, JemallocFacts(None, None, {}), reused=reused)
        facts = replace(capture.facts, agent=agent.to_json())
        (capture.path / FACTS).write_text(json.dumps(facts.to_json()))
        with open_reader([capture.dump], Places()) as reader:
            stacks = reader.read(capture.dump).samples.each_stack_of_frames()
            assert {frame.function for stack in stacks for frame in stack} & {"inflate", "deflate"} == named


@pytest.mark.parametrize("facts", ["[" * 100_000, "{", '{"host": 1}'])
def test_a_damaged_capture_is_read_as_a_bare_dump_with_a_warning(tmp_path: Path, facts: str) -> None:
    (tmp_path / "dump.heap.zst").write_text(f"{HEAD}{NEW}\n")
    (tmp_path / "capture.json").write_text(facts)
    with open_reader([tmp_path / "dump.heap.zst"], Places(symcaches=tmp_path)) as reader:
        assert reader.read(tmp_path / "dump.heap.zst").facts["source"] == "jemalloc"
        assert [warning for warning in reader.warnings if "it is ignored" in warning]
