# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the readers of the writers themselves say of a file."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import unpack
from ansible_collections.offheap.profiler.tests.corpus.corpus_case import TOP, Own, largest
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program

_PERL_ROW = re.compile(r"^ *(-?\d+) +\S+ +\S+ +(-?\d+) +\S+ (.*)", re.MULTILINE)
_PPROF_ROW = re.compile(r"^ *(\d+)(?:B|B\b)? +\S+% +\S+% +(\d+)B? +\S+%  ?(.*?)(?: \(inline\))?$", re.MULTILINE)
_ALLOCATORS = r"(?:[mc]|re)alloc(?:_hook)?|operator new(?:\[\])?"
#: bytes between samples of recordings
JFR_INTERVAL = 65536
_DH_VIEW_CODE = Path("/usr/libexec/valgrind/dh_view.js")
# What dhat writes around a function: its address, and where its source or its image lies.
_DHAT_FRAME = re.compile(r"^0x[0-9A-F]+: | \([^()]*\)$", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def said(*command: str | Path, both: bool = False) -> str:
    """What a command prints; with ``both``, what it complains as well."""
    done = subprocess.run(command, check=True, capture_output=True)
    return (done.stdout + (done.stderr if both else b"")).decode("utf-8", "replace")


def perl_pprof(
    tool: str, program: str | Path, *options: str, only: str = "", callees: bool = False
) -> Callable[[Path], Own]:
    """jeprof or google-pprof. ``only`` takes functions with such names, ``callees`` counts what those hold, too."""

    def read(file: Path) -> Own:
        text = said(tool, "--text", "--show_bytes", *options, program, file)
        total = re.search(r"Total: (\d+)", text)
        assert total, text
        found = _PERL_ROW.findall(text)
        rows = [
            (name, int(with_callees if callees else flat))
            for flat, with_callees, name in found
            if re.search(only, name)
        ]
        return Own(int(total[1]), largest(rows), cumulative=callees, nearest=True)

    return read


def jdk(file: Path) -> Own:
    """What the JDK's own reader of recordings prints of an async-profiler's: what is not freed at its end."""
    command = ("jfr", "print", "--json", "--stack-depth", "1024", "--events", "profiler.Malloc,profiler.Free", file)
    there: dict[int, tuple[str, int]] = {}
    for event in json.loads(said(*command))["recording"]["events"]:
        values = event["values"]
        there.pop(values["address"], None)
        if "size" in values:
            frames = (values["stackTrace"] or {"frames": []})["frames"]
            names = [frame["method"]["name"] for frame in frames if "libasync" not in frame["method"]["type"]["name"]]
            there[values["address"]] = (_after_allocators(names), max(values["size"], JFR_INTERVAL))
    return Own(sum(size for _name, size in there.values()), largest(there.values()))


def jdk_weighted(file: Path) -> Own:
    """The same of a recording of Datadog's, whose weights are floats."""
    command = ("jfr", "print", "--json", "--stack-depth", "1024", "--events", "datadog.NativeMemoryAllocation", file)
    rows = []
    for event in json.loads(said(*command))["recording"]["events"]:
        values = event["values"]
        names = [frame["method"]["name"] for frame in (values["stackTrace"] or {"frames": []})["frames"]]
        (weight,) = struct.unpack("f", struct.pack("f", values["weight"]))
        rows.append((names[0] if names else "", values["size"] * weight))
    held = Counter[str]()
    for name, size in rows:
        held[name] += size
    # Bytes are whole for each stack.
    return Own(round(sum(held.values())), {name: round(size) for name, size in held.most_common(TOP)}, slack=TOP)


def _after_allocators(names: Sequence[str]) -> str:
    """Who called the last of them; nobody where a library's path stands for a name."""
    last = max((at for at, name in enumerate(names) if re.fullmatch(_ALLOCATORS, name)), default=-1)
    return re.sub("^/.*", "", "".join(names[last + 1 : last + 2]))


def folded_beside(file: Path) -> Own:
    """The collapsed stacks that the writer has written of the same."""
    found = [line.rpartition(" ") for line in file.with_suffix(".folded").read_text().splitlines()]
    rows = [(_after_allocators(stack.split(";")[::-1]), int(size)) for stack, _blank, size in found]
    return Own(sum(size for _name, size in rows), largest(rows))


def svg(file: Path) -> Own:
    """The total of the flame graph that filprofiler draws beside its stacks."""
    total = re.search(r"<title>all \(([\d,]+) bytes", file.with_suffix(".svg").read_text())
    assert total
    return Own(_number(total[1]))


def perf_report(file: Path) -> Own:
    """``perf report``, in faults of a page each."""
    text = said(
        "perf",
        "report",
        "-i",
        file.with_suffix(".data"),
        "--stdio",
        "--no-children",
        "-g",
        "none",
        "-n",
        "-F",
        "sample,sym",
    )
    rows = re.findall(r"^ *(\d+) +\[[.k]\] (\S+)", text, re.MULTILINE)
    total = re.search(r"Event count \(approx[.]\): (\d+)", text)
    assert total
    return Own(int(total[1]) * 4096, largest((name, int(count) * 4096) for count, name in rows))


def memleaks_lines(file: Path) -> Own:
    """The numbers that memleak prints before each stack."""
    found = re.findall(r"(\d+) bytes in \d+ allocations from stack\n((?:\t\t.*\n)*)", file.read_text())
    functions = [re.findall(r"\t\t(?:0x[0-9a-f]+\t)?(\w+)", stack) for _size, stack in found]
    rows = [
        (next((name for name in stack if "alloc" not in name), ""), int(size))
        for stack, (size, _) in zip(functions, found, strict=True)
    ]
    return Own(sum(size for _name, size in rows), largest(rows))


def opentelemetry(python: Path) -> Callable[[Path], Own]:
    """OpenTelemetry's own classes, as the Python beside which they are installed reads the file again."""

    def read(file: Path) -> Own:
        total, rows = json.loads(said(python, "-c", _OTLP_SUMS, file))
        return Own(total, largest(rows))

    return read


_OTLP_SUMS = """\
import json, sys
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData
data = ProfilesData.FromString(open(sys.argv[1], "rb").read())
known = data.dictionary
def function(stack):
    location = known.location_table[known.stack_table[stack].location_indices[0]]
    return known.string_table[known.function_table[location.lines[0].function_index].name_strindex]
rows = []
for profile in data.resource_profiles[0].scope_profiles[0].profiles:
    if known.string_table[profile.sample_type.unit_strindex] == "bytes":
        rows += [(function(sample.stack_index), sum(sample.values)) for sample in profile.samples]
print(json.dumps([sum(size for _name, size in rows), rows]))
"""


def go_pprof(index: str = "inuse_space", callees: str = "", program: str = "") -> Callable[[Path], Own]:
    """``go tool pprof``. With ``callees``, what functions with such names hold and all that they call; ``program`` is
    the one that a text without build-ids is of."""

    def read(file: Path) -> Own:
        asked = (f"-sample_index={index}", "-unit=B", "-nodefraction=0", "-nodecount=500", "-top")
        plain = file.with_name("plain.pb")  # it knows gzip only
        plain.write_bytes(unpack.read(file, limits.LARGEST_DUMP))
        text = go_program.go(file.parent, "tool", "pprof", *asked, *([program] if program else []), "plain.pb")
        total = re.search(r"of (\d+)B? total", text)
        assert total, text
        rows = [
            (name, int(with_callees if callees else flat))
            for flat, with_callees, name in _PPROF_ROW.findall(text)
            if callees in name
        ]
        # Of a text, pprof scales each stack, and cuts it to whole bytes.
        slack = max(1, file.read_bytes().count(b" @ 0x"))
        return Own(int(total[1]), largest(rows), cumulative=bool(callees), slack=slack)

    return read


def ms_print(file: Path) -> Own:
    """The last detailed tree that ms_print draws: what is beside its left edge was called by nobody in the program."""
    text = said("ms_print", file)
    head = list(re.finditer(r"^[\d.]+% \(([\d,]+)B\) \((?:heap allocation|page allocation)", text, re.MULTILINE))[-1]
    rows = re.findall(r"^->[\d.]+% \(([\d,]+)B\) 0x[0-9A-F]+: (.*?) \(", text[head.end() :], re.MULTILINE)
    return Own(_number(head[1]), largest((name, _number(size)) for size, name in rows))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


_DH_VIEW = """\
const document = {}, window = {};
%s
gSelect = {childNodes: [], selectedIndex: 0};
gSelect.childNodes.push(...gSelectData.map(() => ({})));
gData = JSON.parse(require("fs").readFileSync(process.argv[2]));
buildTree();
const found = [];
function walk(node, before) {
    const frames = [...before, ...node._frames];
    if (node._kids) node._kids.forEach((kid) => walk(kid, frames));
    else found.push([frames.slice(1).map((frame) => gData.ftbl[frame]), node.FIELD]);
}
walk(gRoot, []);
console.log(JSON.stringify([gRoot.FIELD, found]));
"""


def dh_view(measure: str = "inuse_space", callees: str = "") -> Callable[[Path], Own]:
    """The tree that the code of dhat's viewer builds. With ``callees``, what is allocated in functions with such names
    and all that they call."""

    def read(file: Path) -> Own:
        field = "_atTEndBytes" if measure == "inuse_space" else "_totalBytes"
        viewer = file.with_name("dh_view.js")
        viewer.write_text((_DH_VIEW % _DH_VIEW_CODE.read_text()).replace("FIELD", field))
        total, found = json.loads(said("node", viewer, file))
        stacks = [([_DHAT_FRAME.sub("", frame) for frame in frames], size) for frames, size in found]
        if callees:
            rows = [(name, size) for stack, size in stacks for name in {*stack} if callees in name]
        else:
            rows = [(_caller([(name, "", 0) for name in stack]), size) for stack, size in stacks]
        return Own(total, largest(rows), cumulative=bool(callees))

    return read


def memcheck_summary(file: Path) -> int:
    """The bytes that are in use at the exit."""
    found = re.search(r"in use at exit: ([\d,]+) bytes", file.read_text())
    assert found
    return _number(found[1])


def heaptrack_print(trace: Path, what: str) -> Own:
    """``what`` is leaks, peaks or allocators: heaptrack_print shows three digits or more, in powers of 1000."""
    text = said("heaptrack_print", f"--print-{what}=1", "--merge-backtraces=0", "-n", "50", trace)
    (total,) = re.findall(r"^total memory leaked: ([\d.]+)([KMG]?)B?$", text, re.MULTILINE)
    rows = re.findall(r"^([\d.]+)([KMG]?)B? leaked over \d+ calls from:?\n +(\S[^\n]*)", text, re.MULTILINE)
    sizes = [(name, round(float(size) * _UNITS[unit])) for size, unit, name in rows]
    return Own(round(float(total[0]) * _UNITS[total[1]]), largest(sizes), digits=3)


def memray_reader(leaks: bool) -> Callable[[Path], Own]:
    """memray's own reader, of its file beside the table."""

    def read(table: Path) -> Own:
        from memray import FileReader

        with FileReader(table.with_suffix(".bin")) as reader:
            ask = reader.get_leaked_allocation_records if leaks else reader.get_high_watermark_allocation_records
            sizes = [(_caller(one.stack_trace()), one.size) for one in ask(merge_threads=True)]
        return Own(sum(size for _name, size in sizes), largest(sizes))

    return read


def _caller(stack: Sequence[tuple[str, str, int]]) -> str:
    """Who called the allocator, which memray names where it traces native frames."""
    return next((name for name, _file, _line in stack if not re.search(r"alloc$|^operator new", name)), "")
