# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Texts of perf, memleak, bpftrace, massif, memray and LeakSanitizer: what they say, what they leave out in silence,
and what is damaged.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Records, Told
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import EXACT, Measure, Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most

TOLD = Told(Measure.ALLOCATED, "bytes", 1)
PERF = b"""\
app  4711/4711  18148.510370: PERF_RECORD_MMAP2 4711/4711: [0x55d987074000(0x5000) @ 0 fe:00 9 3]: r--p /srv/app
app  4711/4711  18148.510389:          1 page-faults:     55d987078028 keep+0x0 (/srv/app)
\tffffffff8175016a elf_load+0x28a ([kernel.kallsyms])
\t    55d987075169 std::vector<int, A (B)>::grow(int)+0x12 (/srv/app)
\t    55d9870751c0 main+0x9 (/srv/app)
\t               0 [unknown] ([unknown])

my app  4711/4712  18148.510390:          1 page-faults:u:     55d987078028 keep+0x0 (/srv/app)
\t    55d987075169 std::vector<int, A (B)>::grow(int)+0x12 (/srv/app)
\t    55d9870751c0 main+0x9 (/srv/app)

"""
PYTHON = b"""\
Attaching to pid 4711, Ctrl+C to quit.
[11:16:28] Top 10 stacks with outstanding allocations:
\t8 bytes in 1 allocations from stack
\t\tmain+0x6d [app]
[11:16:33] Top 10 stacks with outstanding allocations:
\taddr = 55815c size = 16
\t80 bytes in 5 allocations from stack
\t\t0x000055815b2ee1ad\tfoo(int, A [B])+0x6d [app]
\t\t0x00007f815b2ee1ad\t[unknown] [libc.so.6]
\t99 bytes in 3 allocations from stack
\t\t0x000055815b2ee1ad\tmain+0x6d [app]
"""
LIBBPF = b"""\
[11:16:33] Top 2 stacks with outstanding allocations:
99 bytes in 3 allocations from stack
\t0 [<00007f05944c098c>] _Znwm+0x1c [/usr/lib/libstdc++.so.6]
\t1 [<000055815b2ee1ad>] main+0x6d [/srv/app]
80 bytes in 5 allocations from stack
\t0 [<000055815b2ee1ad>] main+0x6d [/srv/app]
"""
BPFTRACE = b"""\
Attaching 2 probes...
@bytes[
    malloc+0
    leak+18
    main+20
]: 4096
@bytes[
        7f05944c098c operator new(unsigned long)+28 (/usr/lib/libstdc++.so.6)
        55815b2ee1ad main+109 (/srv/app)
, app]: 100
"""
MASSIF = b"""\
desc: --detailed-freq=1
cmd: ./app
time_unit: i
#-----------
snapshot=0
#-----------
heap_tree=detailed
n2: 150 (heap allocation functions) malloc/new/new[], --alloc-fns, etc.
 n2: 140 0x109169: take(int) (app.c:4)
  n1: 100 0x1091AD: ??? (in /usr/lib/libx.so)
   n0: 100 0x1091C0: main (app.c:6)
  n0: 30 in 3 places, all below massif's threshold (1.00%)
 n0: 10 in 1 place, below massif's threshold (1.00%)
"""
MEMRAY = b"""\
allocator,num_allocations,size,tid,thread_name,stack_trace
MALLOC,3,3001,1,0x1,take;/srv/app.py;9|main;/srv/app.py;12|<module>;<string>;1
MMAP,1,4096,2,"0x2 (a ""b"", c)","operator|(A;B, C);/srv/a.cc;7|PyEval;/usr/lib/libpython3.so.1;0"
CALLOC,1,16,0,0x3,
"""
LSAN = b"""\
==4711==ERROR: LeakSanitizer: detected memory leaks
Direct leak of 40 byte(s) in 1 object(s) allocated from:
    #0 0x7fa94de13545 in __interceptor_malloc lsan_interceptors.cpp:75
    #1 0x557d43fac169 in leak(int, A (B)) /srv/app.c:4
    #2 0x7f3e0f24d249  (/lib/libc.so.6+0x27249) (BuildId: 4196)
Indirect leak of 20 byte(s) in 2 object(s) allocated from:
    #0 0x557d43fac169 in keep (/srv/app+0x1169)

SUMMARY: LeakSanitizer: 60 byte(s) leaked in 3 allocation(s).
"""
TEXTS = {
    "perf": PERF,
    "memleak": PYTHON,
    "bpftrace": BPFTRACE,
    "massif": MASSIF,
    "memray": MEMRAY,
    "lsan": LSAN,
}


def sizes(records: Records) -> dict[str, tuple[int, int]]:
    """Objects and bytes by the labels of a stack, leaf first."""
    found: Counter[str] = Counter()
    objects: Counter[str] = Counter()
    for number, stack in enumerate(records.stacks()):
        path = " < ".join(records.names[place].label for place in stack)
        objects[path] += records.counts.objects[number]
        found[path] += records.counts.bytes[number]
    return {path: (objects[path], size) for path, size in found.items()}


@pytest.mark.parametrize("source", TEXTS)
def test_a_text_tells_its_source(source: str) -> None:
    assert detect.source_of(TEXTS[source], "x") == source


def test_faults_are_growth_of_a_page_each() -> None:
    records = detect.parse(PERF, "x", Told())
    assert (records.measure, records.sampling) == (Measure.GROWN, EXACT)
    assert sizes(records) == {"std::vector<int, A (B)>::grow(int) < main": (2, 8192)}
    sampled = detect.parse(PERF.replace(b" 1 page", b"64 page"), "x", Told())
    assert sampled.sampling == Sampling(Scheme.SYSTEMATIC, 64 * 4096)
    assert sampled.total.bytes == 128 * 4096


def test_minor_and_major_faults_are_all_faults() -> None:
    both = PERF.replace(b" 1 page-faults:u:", b" 1 major-faults:u:").replace(b" 1 page-faults:", b" 1 minor-faults:")
    assert detect.parse(both, "x", Told()).total.bytes == 8192


def test_faults_in_inlined_calls_deleted_files_and_modules_of_the_kernel() -> None:
    faults = b"""\
app  4711/4711  18148.510389:          1 page-faults:
\tffffffffc0a2b3c4 xfs_filemap_fault+0x12 ([xfs])
\t           2b3d4 xfs_fault+0x12 (/lib/modules/6.1.0/kernel/fs/xfs/xfs.ko.zst)
\t    55d987075169 touch+0x12 (inlined)
\t    55d987075169 leak+0x12 (/srv/app (deleted))
\t    55d9870751c0 main+0x9 (/srv/my app (x86)/app)
"""
    records = detect.parse(faults, "x", Told())
    assert [(frame.function, frame.module, frame.kind) for frame in records.names] == [
        ("touch", "", Kind.INLINED),
        ("leak", "app", Kind.NATIVE),
        ("main", "app", Kind.NATIVE),
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((b"page-faults:", b"cycles:"), "has cycles events, not memory"),
        ((b" 1 page-faults:", b" 18446744073709551616 page-faults:"), "a number that is negative or does not fit"),
        ((b" 1 page-faults:u:", b" 1 minor-faults:u:"), "has the same faults as minor-faults and page-faults"),
        ((b"          1 page-faults:", b" page-faults:"), "how many faults each event stands for"),
        ((b"4711/4712", b"4712/4712"), "several processes"),
        ((b"PERF_RECORD_MMAP2", b"PERF_RECORD_LOST"), "perf lost events"),
        ((b"my app  4711/4712  18148.510390", b"my app"), "expected an event"),
        ((b" main+0x9 (/srv/app)", b" main"), "expected a frame"),
    ],
)
def test_other_events_of_perf_are_refused(change: tuple[bytes, bytes], why: str) -> None:
    assert change[0] in PERF
    with pytest.raises(OffheapError, match=why):
        detect.parse(PERF.replace(*change), "x", Told())


def test_faults_without_any_stack_are_refused() -> None:
    alone = b"app  4711/4711  18148.510389:          1 page-faults:     55d987078028 keep+0x0 (/srv/app)\n"
    with pytest.raises(OffheapError, match=r"has no stacks: use perf record -e page-faults -c 1 -g"):
        detect.parse(2 * alone, "x", Told())


def test_perf_without_options_says_the_thread_and_no_process() -> None:
    default = PERF.replace(b"4711/4711 ", b"4711 [001] ").replace(b"4711/4712 ", b"4712 [000] ")
    headed = b"# ========\n# captured on : Tue Nov 24 2026\n# cmdline : perf record -e page-faults\n#\n\n" + default
    for text in (default, headed):
        assert detect.source_of(text, "x") == "perf"
        assert sizes(detect.parse(text, "x", Told())) == {"std::vector<int, A (B)>::grow(int) < main": (2, 8192)}


def test_what_perf_cannot_name_keeps_its_address() -> None:
    text = PERF.replace(b" main+0x9 (/srv/app)", b" [unknown] (/srv/app)", 1)
    (frame,) = (frame for frame in detect.parse(text, "x", Told()).names if frame.function.startswith("["))
    assert (frame.function, frame.module) == ("[0x55d9870751c0]", "app")


def test_both_texts_of_memleak() -> None:
    records = detect.parse(PYTHON, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
    assert sizes(records) == {"foo(int, A [B]) < libc.so.6+0x0": (5, 80), "main": (3, 99)}
    assert sizes(detect.parse(LIBBPF, "x", Told())) == {"_Znwm < main": (3, 99), "main": (5, 80)}
    lines = LIBBPF.replace(b"main+0x6d [/srv/app]", b"main+0x6d /srv/my app/a.c:12:3 [/srv/app]")
    records = detect.parse(lines, "x", Told())
    assert [(one.function, one.module, one.file, one.line) for one in records.names][1] == (
        "main",
        "app",
        "/srv/my app/a.c",
        12,
    )


def test_memleaks_frames_without_a_name_and_with_inlined_calls() -> None:
    text = LIBBPF.replace(b"_Znwm+0x1c [/usr/lib/libstdc++.so.6]", b"[/usr/lib/libstdc++.so.6]").replace(
        b"\t1 [<000055815b2ee1ad>] main+0x6d [/srv/app]\n",
        b"\t1 [<000055815b2ee1ad>] (2 entries)\n\t\tkeep@0x1150 /srv/a.c:12\n\t\tmain@0x1200\n"
        b"\t2 [<000055815b2ee1ad>] <null sym>\n",
    )
    stack = "libstdc++.so.6+0x0 < keep < main < [unknown]"
    assert sizes(detect.parse(text, "x", Told())) == {stack: (3, 99), "main": (5, 80)}


@pytest.mark.parametrize(
    ("text", "change", "why"),
    [
        (LIBBPF, (b"Top 2", b"Top 3"), "shows 2 of 3 stacks: it is cut off"),
        (PYTHON, (b"Attaching to pid 4711", b"Attaching to kernel allocators"), "the kernel's own memory"),
        (LIBBPF, (b"[11:16:33]", b"tracing kernel: true\n[11:16:33]"), "the kernel's own memory"),
        (PYTHON, (b"in 3 allocations", b"in 1000000 allocations"), "all that memleak can hold"),
        (PYTHON, (b"\t80 bytes in 5 allocations from stack", b"80 bytes"), "expected '<n> bytes"),
    ],
)
def test_a_report_at_memleaks_limits_is_refused(text: bytes, change: tuple[bytes, bytes], why: str) -> None:
    assert change[0] in text
    with pytest.raises(OffheapError, match=why):
        detect.parse(text.replace(*change), "x", Told())


def test_ten_stacks_of_libbpf_are_its_default_top() -> None:
    stack = b"8 bytes in 1 allocations from stack\n\t0 [<000055815b2ee1ad>] main+0x6d [/srv/app]\n"
    found = detect.parse(b"[1:2:3] Top 10 stacks with outstanding allocations:\n" + stack * 10, "x", Told())
    assert (found.measure, found.total.bytes) == (Measure.LARGEST, 80)
    with pytest.raises(OffheapError, match=r"there may be more.*-T 10000.*'fab top'"):
        detect.refuse_if_partial(found)
    found = detect.parse(b"[1:2:3] Top 11 stacks with outstanding allocations:\n" + stack * 11, "x", Told())
    assert (found.measure, found.total.bytes) == (Measure.LIVE, 88)
    detect.refuse_if_partial(found)


def test_as_many_stacks_as_the_python_tool_shows_are_the_largest() -> None:
    assert detect.parse(PYTHON, "x", Told()).measure is Measure.LIVE
    assert detect.parse(PYTHON.replace(b"Top 10", b"Top 2"), "x", Told()).measure is Measure.LARGEST


def test_a_map_of_bpftrace_is_what_the_user_says() -> None:
    records = detect.parse(BPFTRACE, "x", TOLD)
    assert (records.measure, records.sampling) == (Measure.ALLOCATED, EXACT)
    assert sizes(records) == {"malloc < leak < main": (0, 4096), "operator new(unsigned long) < main": (0, 100)}
    for text, told, why in (
        (BPFTRACE, Told(), "set source_unit"),
        (BPFTRACE + b"WARNING: Map full; can't update element.\n", TOLD, "BPFTRACE_MAX_MAP_KEYS"),
        (b"@[\n    free+1\n]: -8\n" + BPFTRACE, TOLD, r"line 3: .*not negative.*'\]: -8'"),
        (b"@[\n    main+1\n]: count 1, average 8, total 8\n" + BPFTRACE, TOLD, "line 3: .*a number"),
        (b"@[\n    main+1\n]: 8\n" * 4096, TOLD, "its map is full"),
        (BPFTRACE[:-20], TOLD, "it is cut off"),
    ):
        with pytest.raises(OffheapError, match=why):
            detect.parse(text, "x", told)


def test_a_map_of_bpftrace_with_lines_and_inlined_calls() -> None:
    text = b"""\
@bytes[
    malloc+0
    [inlined] keep@/srv/my app.c:9
    std::vector<int>::grow(int)+18@/srv/app.c:4
    memcpy@@GLIBC_2.14+20
]: 4096
@bytes[
    55815b2ee1ad keep (inlined)
    55815b2ee1ad main+109 (/srv/app)
    55815b2ee1ad 0x55815b2ee1ad ([unknown])
]: 100
"""
    assert [frame[:3] + frame[4:6] for frame in detect.parse(text, "x", TOLD).names] == [
        ("malloc", "", Kind.NATIVE, "", 0),
        ("keep", "", Kind.INLINED, "/srv/my app.c", 9),
        ("std::vector<int>::grow(int)", "", Kind.NATIVE, "/srv/app.c", 4),
        ("memcpy@@GLIBC_2.14", "", Kind.NATIVE, "", 0),
        ("keep", "", Kind.INLINED, "", 0),
        ("main", "app", Kind.NATIVE, "", 0),
        ("0x55815b2ee1ad", "", Kind.NATIVE, "", 0),
    ]


def test_a_map_copied_from_a_terminal_is_whole() -> None:
    text = b"^C@[\n    leak+18\n]: 450\n@[\n    main+20\n]: 450\n"
    assert detect.source_of(text, "x") == "bpftrace"
    assert detect.parse(text, "x", TOLD).total.bytes == 900


def test_a_sanitizers_image_may_have_brackets_in_its_path() -> None:
    records = detect.parse(LSAN.replace(b"/srv/app+0x1169", b"/opt/My app (x86)/app+0x1169"), "x", Told())
    assert [frame.module for frame in records.names if frame.function == "keep"] == ["app"]


def test_a_path_of_a_report_may_have_blanks() -> None:
    text = LSAN.replace(b"lsan_interceptors.cpp:75", b"/home/ana/Estrutura de Dados/aloca\xc3\xa7\xc3\xa3o.c:7:3")
    frame = detect.parse(text, "x", Told()).names[0]
    assert (frame.function, frame.file, frame.line) == ("malloc", "/home/ana/Estrutura de Dados/alocação.c", 7)


def test_leaks_of_both_kinds() -> None:
    records = detect.parse(LSAN, "x", Told())
    assert sizes(records) == {"malloc < leak(int, A (B)) < libc.so.6+0x27249": (1, 40), "keep": (2, 20)}


def test_other_lines_between_a_sanitizers_frames_cut_no_stack() -> None:
    text = LSAN.replace(b"    #1 ", b"Nov 29 03:00:00 app1 other[9]: GET / 200\n\n    #1 ")
    assert sizes(detect.parse(text, "x", Told())) == sizes(detect.parse(LSAN, "x", Told()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((rb"    #1 [^\n]*\n", b""), "frame 2 where 1 should be: lines are missing"),
        ((rb"    #(\d) 0x[0-9a-f]* ", rb"[\1] "), "do not set the option stack_trace_format"),
        ((rb"Indirect leak[^\n]*\n[^\n]*\n", b""), "hold 40 of 60 bytes"),
    ],
)
def test_a_sanitizers_report_without_its_stacks_is_refused(change: tuple[bytes, bytes], why: str) -> None:
    with pytest.raises(OffheapError, match=why):
        detect.parse(re.sub(*change, LSAN), "x", Told())


def test_memrays_table() -> None:
    records = detect.parse(MEMRAY, "x", Told())
    assert (records.measure, records.sampling) == (Measure.LIVE, EXACT)
    assert sizes(records) == {
        "take < main < <module>": (3, 3001),
        "operator|(A;B, C) < PyEval": (1, 4096),
        "": (1, 16),
    }
    assert [(one.module, one.kind, one.file, one.line) for one in records.names] == [
        ("[python]", Kind.PYTHON, "/srv/app.py", 9),
        ("[python]", Kind.PYTHON, "/srv/app.py", 12),
        ("[python]", Kind.PYTHON, "<string>", 1),
        ("", Kind.NATIVE, "/srv/a.cc", 7),
        ("libpython3.so.1", Kind.NATIVE, "/usr/lib/libpython3.so.1", 0),
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((b",3,3001,", b",3,-3001,"), "line 2: expected 6 fields"),
        ((b",3,3001,", b",3,99999999999999999999,"), "64 bits"),
        ((b"MMAP,1,", b"MMAP,"), "line 3: expected 6 fields"),
        ((b'PyEval;/usr/lib/libpython3.so.1;0"', b"PyEval"), "comma-separated values"),
        ((b"0x3,\n", b"0x3"), "line 4: .*cut off"),
    ],
)
def test_a_damaged_table_of_memray(change: tuple[bytes, bytes], why: str) -> None:
    assert change[0] in MEMRAY
    with pytest.raises(OffheapError, match=why):
        detect.parse(MEMRAY.replace(*change), "x", Told())


def test_massifs_tree_becomes_stacks_and_loses_nothing() -> None:
    records = detect.parse(MASSIF, "x", Told())
    assert (records.measure, records.total.bytes) == (Measure.LIVE, 150)
    assert sizes(records) == {
        "take(int) < [0x1091ad] < main": (0, 100),
        "take(int)": (0, 40),
        "": (0, 10),
    }
    pages = MASSIF.replace(b"(heap allocation functions)", b"(page allocation syscalls)")
    assert detect.parse(pages, "x", Told()).measure is Measure.GROWN


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((b"heap_tree=detailed", b"heap_tree=empty"), "--detailed-freq=1"),
        ((b"  n1: 100", b"     n1: 100"), "expected a place in the tree"),
        ((b"  n1: 100", b"  n1: 141"), "expected a place in the tree"),
        ((b"n0: 10 in", b"what"), "expected a place in the tree"),
        ((b" n0: 10 in 1 place, below massif's threshold (1.00%)\n", b""), "lacks 1 places: it is cut off"),
    ],
)
def test_a_damaged_tree_is_refused(change: tuple[bytes, bytes], why: str) -> None:
    assert change[0] in MASSIF
    with pytest.raises(OffheapError, match=why):
        detect.parse(MASSIF.replace(*change), "x", Told())


@pytest.mark.parametrize(
    "text",
    [
        PERF[:-1] + b"\t    1 f (x)\n" * 5000,
        PERF + b"a " * 200000,
        PYTHON + b"\t\tf [" * 100000,
        PYTHON + b" " * 300000 + b"x",
        PYTHON + b"\t\tf" + b" /x" * 30000 + b"\n",
        BPFTRACE + b"@[\n" + b" " * 300000 + b"\n(" * 1000,
        BPFTRACE + b"@[\nf" + b" " * 100000 + b"(\n]: 1\n",
        MASSIF + b"".join(b" " * depth + b"n1: 1 0x1: f (a.c:1)\n" for depth in range(1, 1200)),
        b"desc:\ncmd:\nheap_tree=peak\nn1: 1 x\n" + b" " * 300000,
        b"LeakSanitizer: detected memory leaks\n" + b"Direct leak of " * 30000,
        LSAN[: LSAN.index(b"Indirect")]
        + b"".join(b"    #%d 0x1 in f (x+0x1)\n" % number for number in range(3, 5003))
        + b"    #5003 0x1 in "
        + b"(" * 100000,
        LSAN[: LSAN.index(b"Indirect")] + b"    #3 0x1 in f" + b" /x" * 30000 + b"\n",
        MEMRAY + b"MALLOC,1,1,1,x," + b"f;/srv/app.py;1|" * 5000 + b"\n",
        MEMRAY + b"MALLOC,1,1,1,x," + b";-1;|" * 60000 + b"\n",
        MEMRAY + b'"' * 300001 + b"\n",
        MEMRAY + b"MALLOC,1,1,1,x," + b"a" * (3 << 20) + b"\n",
    ],
    ids="deep spaces brackets blank slashes parentheses blanks nested indented leaks frames paths recursive bars quotes"
    " long".split(),
)
def test_hostile_text_costs_no_more_than_it_is_long(text: bytes) -> None:
    with costs_at_most(20, 64):
        try:
            detect.parse(text, "x", TOLD)
        except OffheapError as error:
            assert str(error).isprintable()


@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 900), st.binary(max_size=30), st.booleans())
def test_damage_gives_our_error_or_a_profile(source: str, at: int, junk: bytes, replaced: bool) -> None:
    text = TEXTS[source]
    try:
        detect.FORMATS[source].parse(text[:at] + junk + text[at + len(junk) * replaced :], "x", TOLD)
    except OffheapError as error:
        assert str(error).isprintable()
