# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One program with a leak known to the byte, under each tool: our total is the tool's own."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from memray import FileReader

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import DumpReader, Images
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.plugins.plugin_utils.views import table
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program, leak_tools

BLOCKS, LEAKED = 100, 100099


def sizes(records: Records) -> Counter[str]:
    """Bytes by the functions of a stack, leaf first."""
    found: Counter[str] = Counter()
    for stack, size in zip(records.stacks(), records.counts.bytes, strict=True):
        found[" < ".join(records.names[place].function for place in stack)] += size
    return found


@pytest.mark.parametrize("option", ["leak", "address"])
def test_a_sanitizers_report(option: str, tmp_path: Path) -> None:
    report = leak_tools.sanitizer_report(tmp_path, BLOCKS, option)
    journal = b"".join(
        b"Nov 22 05:00:00 app1 leak[9]: " + line + b"\n" for line in (b"ready", *report.splitlines(), b"x")
    )
    summary = re.search(rb"SUMMARY: .*: (\d+) byte\(s\) leaked in (\d+) allocation", report)
    assert summary
    size, blocks = map(int, summary.groups())
    assert BLOCKS - 1 <= blocks <= BLOCKS, "a number that looks like a pointer can hide a block from the sanitizer"
    for data in (report, journal):
        assert detect.source_of(data, "x") == "lsan"
        records = detect.parse(data, "x", Told())
        assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
        assert (records.total.objects, records.total.bytes) == (blocks, size)
        (path,) = sizes(records)
        assert path.startswith("malloc < take")
    with pytest.raises(OffheapError, match="it is cut off"):
        detect.parse(report[: report.rindex(b"SUMMARY")], "x", Told())
    with pytest.raises(OffheapError, match="max_leaks=0"):
        detect.parse(re.sub(rb"leak of \d+", b"leak of 99", report), "x", Told())


def test_massif(tmp_path: Path) -> None:
    output = leak_tools.massif_file(tmp_path, BLOCKS)
    data = output.read_bytes()
    assert detect.source_of(data, "x") == "massif"
    records = detect.parse(data, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
    printed = subprocess.run(["ms_print", output], capture_output=True, text=True, check=True).stdout
    last = re.findall(r"^[\d.]+% \(([\d,]+)B\) \(heap allocation functions\)", printed, re.MULTILINE)[-1]
    assert records.total.bytes == int(last.replace(",", ""))
    assert sizes(records)["take < leak < main"] == LEAKED


def test_valgrinds_tree_of_memory_at_exit(tmp_path: Path) -> None:
    data = leak_tools.xtree_file(tmp_path, BLOCKS).read_bytes()
    assert detect.source_of(data, "x") == "massif"
    records = detect.parse(data, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
    assert sizes(records) == {"take < leak < main": LEAKED}


def test_heaptrack_through_its_own_tool(tmp_path: Path) -> None:
    trace = leak_tools.heaptrack_trace(tmp_path, BLOCKS)
    with pytest.raises(OffheapError, match=r"heaptrack_print -F x[.]folded --flamegraph-cost-type leaked"):
        detect.source_of(unpack.read(trace, 1 << 24), "x")
    folded = tmp_path / "x.folded"
    printed = leak_tools.folded_by_heaptrack(trace, folded)
    records = detect.parse(folded.read_bytes(), "x", Told(Measure.LIVE, "bytes", 1))
    assert records.total.bytes == LEAKED
    assert "total memory leaked: 100.10K" in printed


def test_gperftools(tmp_path: Path) -> None:
    dump = leak_tools.gperftools_dump(tmp_path, BLOCKS)
    data = dump.read_bytes()
    assert detect.source_of(data, "x") == "gperftools"
    records = detect.parse(data, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
    assert (records.total.accum_objects, records.total.accum_bytes) == (BLOCKS + 1, LEAKED + 50)
    program = leak_tools.built(tmp_path)
    for index, ours in ("inuse_space", records.total.bytes), ("alloc_space", records.total.accum_bytes):
        command = ["google-pprof", "--text", "--show_bytes", f"--{index}", program, str(dump)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"Total: {ours} B" in printed
    assert records.total.bytes == LEAKED


@pytest.mark.parametrize(("form", "source"), [("text", "gperftools"), ("proto", "pprof")])
def test_mimalloc_pprof(form: str, source: str, tmp_path: Path) -> None:
    dump = leak_tools.mimalloc_dump(tmp_path, BLOCKS, form)
    data = dump.read_bytes()
    assert detect.source_of(data, "x") == source
    records = detect.parse(data, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, Sampling(Scheme.POISSON, 1))
    shown = go_program.go(tmp_path, "tool", "pprof", "-unit=B", "-nodefraction=0", "-top", dump.name)
    assert f"of {records.total.bytes}B total" in shown
    samples = DumpReader(Images([tmp_path]), tmp_path).read(dump).samples
    rows = table.Table(samples, table.Granularity.FUNCTIONS, table.Measure.INUSE_SPACE).rows()
    assert {row.name: row.flat for row in rows}["take"] == LEAKED


def test_mimallocs_imitation_of_dhat_has_no_names(tmp_path: Path) -> None:
    data = leak_tools.mimalloc_dhat_file(tmp_path, BLOCKS).read_bytes()
    assert detect.source_of(data, "x") == "dhat"
    with pytest.raises(OffheapError, match="MIMALLOC_PROF_DUMP_AT_EXIT"):
        detect.parse(data, "x", Told())


def test_memray_through_its_own_reader(tmp_path: Path) -> None:
    table = leak_tools.memray_table(tmp_path, BLOCKS)
    own, data = table.with_suffix(".bin"), table.read_bytes()
    for unread in (own.read_bytes(), b"memray\0\r"):
        with pytest.raises(OffheapError, match="memray transform csv --leaks"):
            detect.source_of(unpack.unpack(unread, "x", 1 << 26), "x")
    assert detect.source_of(data, "x") == "memray"
    records = detect.parse(data, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
    with FileReader(own) as reader:
        leaked = [(one.n_allocations, one.size) for one in reader.get_leaked_allocation_records(merge_threads=True)]
    assert (records.total.objects, records.total.bytes) == tuple(map(sum, zip(*leaked, strict=True)))
    taken = {path: size for path, size in sizes(records).items() if " < take < leak < <module>" in path}
    assert list(taken.values()) == [LEAKED]
