# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One real dump in every format, with every option; selection is compared with jeprof's own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.analyze import (
    ALL_THREADS,
    analyze,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.formats import FORMATS, Request
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import (
    AnalysisError,
    DumpReader,
    Images,
    Source,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.export import graph
from ansible_collections.offheap.profiler.plugins.plugin_utils.export.top import Look
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.selection import Selection, subtract
from ansible_collections.offheap.profiler.plugins.plugin_utils.views.table import Granularity, Measure, Table
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.views import profiled_programs
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.views.test_jeprof_tables import (
    ROW,
    about,
    jeprof,
)

OWN = {"small", "inner", "outer", "large", "deep", "work"}
IMAGES = Images([Path("/")])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind = next(kind for kind in profiled_programs.KINDS if kind.name == "c-threads")
    return profiled_programs.run(kind, tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def source(program: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Source:
    return DumpReader(IMAGES, tmp_path_factory.mktemp("symcaches")).read(program[1])


def ask(source: Source, request: Request) -> str:
    return analyze(request, source, None, IMAGES).content.decode()


def test_a_dump_without_stacks_says_why(tmp_path: Path) -> None:
    dump = tmp_path / "jeprof.1.0.f.heap"
    dump.write_text("heap_v2/524288\n  t*: 2: 8192 [0: 0]\n@\n  t*: 2: 8192 [0: 0]\n\nMAPPED_LIBRARIES:\n")
    text = ask(DumpReader(IMAGES, tmp_path).read(dump), Request())
    assert "Stacks" in text and "has found no caller" in text and "--enable-prof-libunwind" in text


def test_a_dump_without_build_ids_says_first_that_its_names_may_be_wrong(source: Source) -> None:
    """It shows no build-id as its own, which a file of this machine has."""
    first, *others = ask(source, Request()).splitlines()
    assert first.split(None, 1) == [
        "Names",
        "may be wrong: the dump says no build-ids, so they are of the files with its paths on this machine",
    ]
    assert not any("Build-id" in line for line in others)


@pytest.mark.parametrize(
    ("option", "request_"),
    [
        ("--focus=deep", Request(selection=Selection(focus="deep"))),
        ("--ignore=small|large", Request(selection=Selection(ignore="small|large"))),
        ("--retain=small|deep", Request(selection=Selection(retain="small|deep"))),
        ("--exclude=deep", Request(selection=Selection(exclude="deep"))),
        ("--inuse_objects", Request(measure=Measure.INUSE_OBJECTS)),
        ("--alloc_space", Request(measure=Measure.ALLOC_SPACE)),
        ("--alloc_objects", Request(measure=Measure.ALLOC_OBJECTS)),
        ("--lines", Request(granularity=Granularity.LINES)),
        ("--files", Request(granularity=Granularity.FILES)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_jeprofs_options_select_the_same(
    program: tuple[str, Path], source: Source, option: str, request_: Request
) -> None:
    rows = ROW.findall(jeprof(*program, option))
    theirs: dict[str, tuple[int, int]] = {}
    for flat, cumulative, name in rows:
        # addr2line distinguishes blocks of one line; they are still one line in one file.
        end = r"(?::\d+)? \(discriminator \d+\)$" if option == "--files" else r" \(discriminator \d+\)$"
        own = re.sub(end, "", name.replace(" (inline)", "").replace("/./", "/"))
        if own.split()[0] in OWN or own.endswith("program.c"):
            before = theirs.get(own, (0, 0))
            theirs[own] = (before[0] + int(flat), before[1] + int(cumulative))
    table = analyze(request_, source, None, IMAGES).table
    ours = {row.name: row for row in table.rows() if row.name in theirs or row.name.split()[0] in OWN}
    assert set(ours) == set(theirs)
    assert theirs
    for name, (flat, cumulative) in theirs.items():
        if request_.granularity is Granularity.FUNCTIONS:
            assert flat in about(ours[name].flat)
            assert cumulative in about(ours[name].cumulative)
        else:
            assert flat == pytest.approx(ours[name].flat, abs=5)


def test_every_format_gives_something(source: Source) -> None:
    for kind in FORMATS:
        if kind in graph.PICTURES and shutil.which("dot") is None:
            continue
        content = analyze(Request(kind=kind, function="^small$"), source, None, IMAGES).content
        assert len(content) > 100, kind


def test_tables_show_numbers_with_their_errors(source: Source) -> None:
    shown = ask(source, Request(look=Look(limit=3)))
    assert re.search(r"^Total: \d+\.\d MiB ± \d+\.\d \w+ \(inuse_space, by functions\)$", shown, re.M)
    assert len(shown.split("function\n")[1].splitlines()) == 3
    assert "± " in ask(source, Request(kind="traces"))
    assert "large" in ask(source, Request(kind="tree"))
    peeked = ask(source, Request(kind="peek", function="^large$"))
    assert re.search(r"100\.0%    work\n.*\|  large\n", peeked)


def test_a_listing_shows_the_source_beside_the_numbers(
    source: Source, program: tuple[str, Path], tmp_path: Path
) -> None:
    shown = ask(source, Request(kind="list", function="^large$", source_path=[program[1].parent]))
    assert re.search(r"MiB .*MiB +\d+: STAY static void \*large", shown)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "program.c").write_text("\n" * 8 + "the line\n")
    assert ": the line" in ask(source, Request(kind="list", function="^large$", source_path=[moved]))
    assert "(source not found)" in ask(source, Request(kind="list", function="^large$", source_path=[tmp_path]))


def test_the_page_has_the_line_of_debug_information_but_not_its_text(source: Source) -> None:
    page = ask(source, Request(kind="flamegraph"))
    (data,) = re.findall(r'<script type="application/json" id="data">(.*)</script>', page)
    (unit,) = json.loads(data)["units"]
    lines = {f"{Path(file).name}:{line}" for file, line in unit["tree"]["sites"]}
    listed = ask(source, Request(kind="list", function="^large$"))
    at = re.search(r"MiB .*MiB +(\d+):", listed)
    assert at and f"program.c:{at[1]}" in lines
    assert "STAY static" not in page


def test_a_disassembly_has_numbers_at_calls_only(source: Source) -> None:
    shown = ask(source, Request(kind="disasm", function="^large$", look=Look(exact=True)))
    numbers = re.findall(r"^ +(\d+) +\d+   [0-9a-f]+: (\w+)", shown, re.M)
    assert [instruction for _flat, instruction in numbers] == ["call"]


@pytest.mark.parametrize("what", ["debug information alone", "no section headers"])
def test_a_file_without_code_to_disassemble_is_named(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    image, path = tmp_path / "image", IMAGES.find(source.executable[1]) or Path(source.executable[0])
    if what == "debug information alone":
        subprocess.run(["objcopy", "--only-keep-debug", path, image], check=True)
    else:
        content = bytearray(path.read_bytes())
        content[0x28:0x30], content[0x3C:0x40] = bytes(8), bytes(4)  # e_shoff; e_shnum and e_shstrndx (elf(5))
        image.write_bytes(content)
    monkeypatch.setattr(IMAGES, "find", lambda _build_id, _sha256: image)
    with pytest.raises(OffheapError, match="image has no code there that objdump shows"):
        ask(source, Request(kind="disasm", function="^large$"))


def test_callgrind_adds_up(source: Source) -> None:
    shown = ask(source, Request(kind="callgrind"))
    summary = re.search(r"^summary: (\d+)$", shown, re.M)
    assert summary
    own, after_call = 0, False
    for line in shown.splitlines():
        if re.fullmatch(r"\d+ -?\d+", line) and not after_call:
            own += int(line.split()[1])
        after_call = line.startswith("calls=")
    assert own == pytest.approx(int(summary[1]), abs=100)


def test_graphs(source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = ask(source, Request(kind="dot", limits=graph.GraphLimits(nodes=4)))
    assert len(re.findall(r"^N\d+ \[", shown, re.M)) == 4
    picture = ElementTree.fromstring(graph.picture(shown, "svg"))
    assert picture.tag.endswith("svg")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OffheapError, match=r"install the package graphviz"):
        ask(source, Request(kind="png"))
    with pytest.raises(OffheapError, match=r"install the package binutils"):
        ask(source, Request(kind="disasm", function="small"))


def test_names_cannot_break_out_of_a_graph() -> None:
    assert graph._quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


def test_threads(source: Source) -> None:
    uids = source.samples.thread_uids()
    assert len(uids) >= 4
    parts = ask(source, Request(thread=ALL_THREADS))
    assert len(re.findall(r"^Thread  ", parts, re.M)) == len(uids)
    assert f"Thread           {uids[1]}" in ask(source, Request(thread=str(uids[1])))
    for wrong in ("99999", "x", "-1"):
        with pytest.raises(OffheapError, match="thread"):
            ask(source, Request(thread=wrong))
    with pytest.raises(AnalysisError, match="ask for one thread"):
        ask(source, Request(thread=ALL_THREADS, kind="dot"))


def test_a_base_is_subtracted(source: Source) -> None:
    for measure in (Measure.INUSE_SPACE, Measure.ALLOC_SPACE):
        nothing = analyze(Request(measure=measure), source, source, IMAGES).table
        assert nothing.rows() == [], "which is not that there are no such numbers"
    part = Selection(focus="large").apply(source.samples)
    without = Table(subtract(source.samples, part), Granularity.FUNCTIONS, Measure.INUSE_SPACE)
    assert "large" not in [row.name for row in without.rows()]
    negative = replace(source, samples=part)
    answer = analyze(Request(), negative, source, IMAGES)
    assert answer.table.total < 0
    assert analyze(Request(drop_negative=True), negative, source, IMAGES).table.total == 0


def test_what_cannot_be_had_is_said(source: Source, tmp_path: Path) -> None:
    with pytest.raises(OffheapError, match="not a regular expression"):
        ask(source, Request(selection=Selection(focus="(")))
    with pytest.raises(AnalysisError, match="needs 'function'"):
        ask(source, Request(kind="list"))
    with pytest.raises(OffheapError, match="no function of the profile matches"):
        ask(source, Request(kind="disasm", function="nowhere"))
    with pytest.raises(AnalysisError, match="No such file"):
        DumpReader(IMAGES, tmp_path).read(tmp_path / "missing.heap")
    (tmp_path / "bad.heap").write_text("heap_v2/1\n")
    with pytest.raises(OffheapError, match="MAPPED_LIBRARIES"):
        DumpReader(IMAGES, tmp_path).read(tmp_path / "bad.heap")


def test_images_are_found_in_pprofs_layout(program: tuple[str, Path], source: Source, tmp_path: Path) -> None:
    build_id = source.executable[1]
    assert build_id
    (tmp_path / build_id).mkdir()
    shutil.copy(program[0], tmp_path / build_id / Path(program[0]).name)
    bare = DumpReader(Images([tmp_path]), tmp_path / "symcaches").read(program[1])
    assert bare.executable[1] == build_id
    assert {"large", "small"} <= {frame.function for frame in bare.samples.frames}
    assert all(not frame.function for frame in bare.samples.frames if frame.module.startswith("libc.so"))


def test_a_directory_of_an_archive_gives_no_file_of_another_sum(tmp_path: Path) -> None:
    build_id, sums = "ab" * 20, ["aa" * 32, "bb" * 32]
    images = Images([tmp_path])
    (tmp_path / build_id).mkdir()
    forged = tmp_path / build_id / f"app@{sums[1]}"
    forged.touch()
    assert [images.find(build_id, one) for one in sums] == [None, forged]
    own = tmp_path / build_id / "app"
    own.touch()
    assert [images.find(build_id, one) for one in sums] == [own, own], (
        "what the user has put there, the user answers for"
    )
