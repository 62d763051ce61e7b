# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the readers of the writers themselves say of a file."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Own, largest
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program

_PERL_ROW = re.compile(r"^ *(-?\d+) +\S+ +\S+ +(-?\d+) +\S+ (.*)", re.MULTILINE)
_PPROF_ROW = re.compile(r"^ *(\d+)(?:B|B\b)? +\S+% +\S+% +\d+B? +\S+%  ?(.*?)(?: \(inline\))?$", re.MULTILINE)
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


def go_pprof(index: str = "inuse_space") -> Callable[[Path], Own]:
    """``go tool pprof``."""

    def read(file: Path) -> Own:
        asked = (f"-sample_index={index}", "-unit=B", "-nodefraction=0", "-nodecount=500", "-top", file.name)
        text = go_program.go(file.parent, "tool", "pprof", *asked)
        total = re.search(r"of (\d+)B? total", text)
        assert total, text
        rows = largest((name, int(flat)) for flat, name in _PPROF_ROW.findall(text))
        # Of a text, pprof scales each stack, and cuts it to whole bytes.
        return Own(int(total[1]), rows, slack=max(1, file.read_bytes().count(b" @ 0x")))

    return read


def ms_print(file: Path) -> Own:
    """The last detailed tree that ms_print draws: what is beside its left edge was called by nobody in the program."""
    text = said("ms_print", file)
    head = list(re.finditer(r"^[\d.]+% \(([\d,]+)B\) \((?:heap allocation|page allocation)", text, re.MULTILINE))[-1]
    rows = re.findall(r"^->[\d.]+% \(([\d,]+)B\) 0x[0-9A-F]+: (.*?) \(", text[head.end() :], re.MULTILINE)
    return Own(_number(head[1]), largest((name, _number(size)) for size, name in rows))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


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
    return next((name for name, _file, _line in stack if not name.endswith("alloc")), "")
