# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""dhat's file and memcheck's report: what they say, on a program with a leak known to the byte, and what is damaged."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Counts, Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect, valgrind_place
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.strategies import leak_tools

BLOCKS, LEAKED = 100, 100099
DHAT = b"""\
{"dhatFileVersion":2
,"mode":"heap","verb":"Allocated"
,"bklt":true,"bkacc":true
,"tu":"instrs","Mtu":"Minstr","tuth":500
,"cmd":"./app","pid":7,"te":9,"tg":8
,"pps":
 [{"tb":150,"tbk":3,"tl":99,"mb":150,"mbk":3,"gb":150,"gbk":3,"eb":100,"ebk":2,"rb":0,"wb":9,"acc":[-50,1],"fs":[1,2,3]}
 ,{"tb":9,"tbk":1,"tl":9,"mb":9,"mbk":1,"gb":0,"gbk":0,"eb":0,"ebk":0,"rb":0,"wb":9,"fs":[1,4]}
 ]
,"ftbl":
 ["[root]"
 ,"0x48417B4: malloc (in /usr/libexec/valgrind/vgpreload_dhat-amd64-linux.so)"
 ,"0x1091A6: std::hold(int, A (B)) (app.cc:12)"
 ,"0x109821: ??? (in /srv/app)"
 ,"0x109830: main (app.cc:31:9)"
 ]
}
"""
MEMCHECK = b"""\
==7== Memcheck, a memory error detector
==7== Command: ./app
==7== HEAP SUMMARY:
==7==     in use at exit: 1,700 bytes in 21 blocks
==7==   total heap usage: 30 allocs, 9 frees, 3,000 bytes allocated
==7==
==8== HEAP SUMMARY is what the program itself prints
==7== 1,600 (800 direct, 800 indirect) bytes in 10 blocks are definitely lost in loss record 1 of 2
==7==    at 0x48417B4: operator new(unsigned long) (in /usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so)
==7==    by 0x1091A6: std::hold(int, A (B)) (app.cc:12)
==7==    by 0x109830: main (app.cc:31)
==7==
==7== LEAK SUMMARY:
==7==    definitely lost: 800 bytes in 10 blocks
==7==    indirectly lost: 800 bytes in 10 blocks
==7==      possibly lost: 0 bytes in 0 blocks
==7==    still reachable: 100 bytes in 1 blocks
==7==                       of which reachable via heuristic:
==7==                         newarray           : 100 bytes in 1 blocks
==7==         suppressed: 0 bytes in 0 blocks
==7== Reachable blocks (those to which a pointer was found) are not shown.
"""
XML = b"""\
<?xml version="1.0"?>

<valgrindoutput>
<error>
  <kind>UninitCondition</kind>
  <what>Conditional jump or move depends on uninitialised value(s)</what>
  <stack> <frame> <ip>0x1</ip> </frame> </stack>
</error>
<status>
  <state>FINISHED</state>
</status>
<error>
  <unique>0x0</unique>
  <kind>Leak_DefinitelyLost</kind>
  <xwhat>
    <text>1,600 (800 direct, 800 indirect) bytes in 10 blocks are definitely lost in loss record 1 of 2</text>
    <leakedbytes>1600</leakedbytes>
  </xwhat>
  <stack>
    <frame> <ip>0x48417B4</ip> <obj>/usr/libexec/valgrind/vgpreload.so</obj> <fn>malloc</fn> </frame>
    <frame> <ip>0x1091A6</ip> <fn>std::hold&lt;int&gt;</fn> <file>app.cc</file> <line>12</line> </frame>
    <frame> <ip>0x109830</ip> <obj>/srv/app</obj> </frame>
  </stack>
</error>
</valgrindoutput>
"""


def read(data: bytes) -> Records:
    return detect.parse(data, "x", Told())


def sizes(records: Records) -> Counter[str]:
    """Bytes by the functions of a stack, leaf first."""
    found: Counter[str] = Counter()
    for stack, size in zip(records.stacks(), records.counts.bytes, strict=True):
        found[" < ".join(records.names[place].function for place in stack)] += size
    return found


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(DHAT), **fields}).encode()


def test_dhat_says_what_is_there_at_the_end_and_what_was_allocated() -> None:
    records = read(DHAT)
    assert (detect.source_of(DHAT, "x"), records.measure, records.sampling) == ("dhat", Measure.LIVE, EXACT)
    assert records.total == Counts(2, 100, 4, 159)
    assert sizes(records) == {"malloc < std::hold(int, A (B)) < [0x109821]": 100, "malloc < main": 0}
    assert {(frame.module, frame.file, frame.line) for frame in records.names} == {
        ("vgpreload_dhat-amd64-linux.so", "", 0),
        ("", "app.cc", 12),
        ("app", "", 0),
        ("", "app.cc", 31),
    }


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (DHAT[:-9], "cut off or damaged"),
        (b'{"dhatFileVersion"' + b":[" * 9999, "cut off or damaged"),
        (changed(dhatFileVersion=3), "another version"),
        (changed(mode="ad-hoc", verb="Clobbered"), "counts what was clobbered, not memory"),
        (changed(bklt=False), "not memory"),
        (changed(pps=[{"fs": []}]), "it has no 'ebk'"),
        (changed(pps=[{"fs": [9], "ebk": 1, "eb": 1, "tbk": 1, "tb": 1}]), "expected a file of dhat"),
        (changed(pps=[{"fs": [-1], "ebk": 1, "eb": 1, "tbk": 1, "tb": 1}]), "a number is not what dhat counts"),
        (changed(pps=[{"fs": [], "ebk": 1, "eb": -1, "tbk": 1, "tb": 1}]), "a number is not what dhat counts"),
        (changed(pps=[{"fs": [1] * 5000, "ebk": 1, "eb": 1, "tbk": 1, "tb": 1}]), "more than 4096 frames"),
        (changed(ftbl=[0, 0, 0, 0, 0]), "expected a file of dhat"),
    ],
)
def test_a_damaged_file_of_dhat_is_refused(data: bytes, why: str) -> None:
    with costs_at_most(20, 64), pytest.raises(OffheapError, match=why) as caught:
        read(data)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("before", [b"", b"Nov 22 05:00:00 app1 app[9]: ", b"==00:00:00:01.2 "])
def test_memchecks_report_counts_each_block_once(before: bytes) -> None:
    data = MEMCHECK.replace(b"==7==", before + b"7==" if before.startswith(b"==") else before + b"==7==")
    records = read(data + b"the program's own\n")
    assert (detect.source_of(data, "x"), records.measure, records.sampling) == ("memcheck", Measure.LIVE, EXACT)
    assert (records.total.objects, records.total.bytes) == (21, 1700), "what is in use at the exit"
    assert sizes(records) == {"operator new(unsigned long) < std::hold(int, A (B)) < main": 800, "": 900}


def test_a_report_after_much_else_in_the_journal_is_found() -> None:
    data = b"Nov 22 05:00:00 app1 app[8]: GET / 200\n" * 5000 + MEMCHECK
    assert (detect.source_of(data, "x"), read(data).total.bytes) == ("memcheck", 1700)


def test_a_script_that_starts_the_program_is_not_taken_for_it() -> None:
    banner = MEMCHECK.index(b"==7== HEAP")
    script = MEMCHECK.replace(b"==7==", b"==57==")
    with pytest.raises(OffheapError, match=r"several processes: write a file for each, --log-file=memcheck\.%p"):
        read(script[:banner] + MEMCHECK + script[banner:])
    # What has run before, and what has only started it with fork, is not meant.
    assert read(script + MEMCHECK).total.bytes == 1700
    assert read(script + MEMCHECK[banner:]).total.bytes == 1700


def test_memchecks_xml_has_the_same_stacks_and_no_sum() -> None:
    records = read(XML)
    assert (detect.source_of(XML, "x"), records.total.objects, records.total.bytes) == ("memcheck", 10, 800)
    assert sizes(records) == {"malloc < std::hold<int> < [0x109830]": 800}


@pytest.mark.parametrize(
    ("option", "measure"),
    [
        (b"--xml-file=--show-leak-kinds=all", Measure.LARGEST),
        (b"--show-leak-kinds=definite,possible", Measure.LARGEST),
        (b"--show-leak-kinds=all", Measure.LIVE),
        (b"--show-reachable=yes", Measure.LIVE),
    ],
)
def test_memchecks_xml_without_what_is_reachable_is_no_basis_for_a_verdict(option: bytes, measure: Measure) -> None:
    options = b"<args>\n<vargv>\n<arg>" + option + b"</arg>\n</vargv>\n<argv><arg>--show-reachable=yes</arg></argv>"
    records = read(XML.replace(b"<valgrindoutput>", b"<valgrindoutput>\n" + options + b"</args>"))
    assert (records.measure, records.total.bytes) == (measure, 800)
    if measure is Measure.LARGEST:
        with pytest.raises(OffheapError, match=r"there may be more: .*memcheck with --show-leak-kinds=all"):
            detect.refuse_if_partial(records)


def test_what_memchecks_xml_says_while_the_program_runs_is_not_added_to_its_end() -> None:
    status, leak = XML.index(b"<status>"), XML.index(b"<error>\n  <unique>")
    early = XML[leak:].replace(b"</valgrindoutput>\n", b"") * 2
    records = read(XML[:status] + early + XML[status:])
    assert (records.total.objects, records.total.bytes) == (10, 800)
    with pytest.raises(OffheapError, match="has no leaks in it"):
        read(XML[:status] + early + XML[status:leak] + b"</valgrindoutput>\n")


NONE = re.sub(rb"(?s)==7== 1,600.*?==7==\n", b"", MEMCHECK)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (MEMCHECK[: MEMCHECK.index(b"==7== HEAP")], "has no leaks in it: run valgrind with --leak-check=full"),
        (MEMCHECK[: MEMCHECK.index(b"==7==         supp")], "it is cut off"),
        (MEMCHECK.replace(b"lost: 800 bytes in 10", b"lost: 900 bytes in 11"), "hold 800 of 900 bytes definitely lost"),
        (NONE, "only the sum of what was not freed, and no stacks: run"),
        (XML[:-20], "it is cut off"),
        (XML.replace(b"FINISHED", b"RUNNING"), "a program that has ended, .*it is cut off"),
        (XML.replace(b"Leak_", b"Jump_"), "has no leaks in it"),
        (XML.replace(b"bytes in", b"in"), "expected '9 bytes in 1 blocks"),
    ],
)
def test_a_damaged_report_of_memcheck_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(OffheapError, match=why) as caught:
        read(data)
    assert str(caught.value).isprintable()


def test_a_program_that_frees_all_holds_nothing() -> None:
    data = MEMCHECK[: MEMCHECK.index(b"==7== 1,600")] + b"==7== All heap blocks were freed -- no leaks are possible\n"
    assert read(data).total.bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        MEMCHECK.replace(b"(app.cc:12)", b"(" * 200_000),
        MEMCHECK + b"==7== " * 100_000,
        XML.replace(b"</ip>", b"<ip>" * 50_000),
        XML.replace(b"<error>", b"<error><stack><frame>" * 20_000),
        DHAT.replace(b"std::hold", b"0x1: (in " * 30_000),
    ],
    ids="brackets heads open errors places".split(),
)
def test_hostile_files_cost_no_more_than_they_are_long(data: bytes) -> None:
    with costs_at_most(20, 64):
        try:
            read(data)
        except OffheapError as error:
            assert str(error).isprintable()


@given(st.sampled_from([DHAT, MEMCHECK, XML]), st.binary(max_size=40), st.integers(0, 900))
def test_rubbish_gives_our_error(sound: bytes, rubbish: bytes, at: int) -> None:
    for data in (sound[:at] + rubbish + sound[at:], sound[:at] + rubbish):
        for source in ("dhat", "memcheck"):
            try:
                detect.parse_as(source, data, "x", Told())
            except OffheapError as error:
                assert str(error).isprintable()


@given(st.text(max_size=60))
def test_any_text_is_a_place_or_none(text: str) -> None:
    found = valgrind_place.frame_of(f"0x1f: {text}")
    assert found is not None and valgrind_place.frame_of(text or "x") in (None, found)


@pytest.mark.parametrize("path", ["/opt/My app (x86)/app", "/srv/app (deleted)"])
def test_functions_without_a_name_stay_apart_whatever_their_images_path(path: str) -> None:
    places = [valgrind_place.frame_of(f"0x{address}: ??? (in {path})") for address in ("AD", "C0")]
    assert [(place.function, place.module) for place in places if place] == [("[0xad]", "app"), ("[0xc0]", "app")]


def test_dhat_on_a_program(tmp_path: Path) -> None:
    file = leak_tools.dhat_file(tmp_path, BLOCKS)
    records = read(file.read_bytes())
    log = file.with_suffix(".log").read_text()
    for when, ours in (("At t-end", records.total.bytes), ("Total", records.total.accum_bytes)):
        found = re.search(rf"{when}: +([\d,]+) bytes", log)
        assert found and int(found[1].replace(",", "")) == ours
    assert sizes(records)["malloc < take < leak < main"] == LEAKED


def test_memcheck_on_a_program(tmp_path: Path) -> None:
    for xml in (False, True):
        records = read(leak_tools.memcheck_file(tmp_path, BLOCKS, xml).read_bytes())
        assert (records.total.objects, records.total.bytes) == (BLOCKS, LEAKED)
        assert sizes(records) == {"malloc < take < leak < main": LEAKED}
