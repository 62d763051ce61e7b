# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The leaks that valgrind's memcheck reports when a program ends, as text or as XML.

    ==7== 1,600 (800 direct, 800 indirect) bytes in 10 blocks are definitely lost in loss record 1 of 12
    ==7==    at 0x48417B4: malloc (in /usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so)
    ==7==    by 0x1091A6: keep (app.c:12)
    ==7==
    ==7== LEAK SUMMARY:
    ==7==    definitely lost: 800 bytes in 10 blocks

All that was not freed is live, what something still points to included. By default memcheck shows no stacks of that,
nor of what only lost blocks point to: they are in its summary, and count without a stack. XML has no summary, so
without the option that asks for all stacks, it has a part of what is live; it says its options. A program can ask for
a report while it runs, which says the same leaks: only the one at its end counts. A log may have those of its children,
too (--trace-children, or after a fork): which of them is meant, nobody knows.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from ..model.frame import Frame
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure
from .format_error import FormatError, UnusableError
from .stack_builder import StackBuilder
from .valgrind_place import frame_of

_BANNER = b"== Memcheck, a memory error detector"
_SUMMARY = b"== HEAP SUMMARY:"
_XML = re.compile(rb"\s*<\?xml[^>]{0,99}>\s*<valgrindoutput>")
_LINE = re.compile(rb"==(?:[\d:.]{1,40} )?(\d{1,10})== ?(.*)")
_NUMBER = r"([\d,]{1,26})"
_KINDS = "definitely lost|indirectly lost|possibly lost|still reachable"
_RECORD = re.compile(
    rf"{_NUMBER}(?: \({_NUMBER} direct, {_NUMBER} indirect\))? bytes in {_NUMBER} blocks are ({_KINDS}) in loss record"
)
_SUM = re.compile(rf" +({_KINDS}|suppressed): {_NUMBER} bytes in {_NUMBER} blocks")
_SHOW = "run valgrind with --leak-check=full --show-leak-kinds=all"
_XML_END = b"<state>FINISHED</state>"
_XML_OPTIONS = b"<vargv>", b"</vargv>"
_SHOWS_ALL = re.compile(rb"<arg>--show-(?:leak-kinds=all|reachable=yes)</arg>")
_XML_ERROR = re.compile(rb"<error>(.*?)</error>", re.DOTALL)
_XML_WHAT = re.compile(rb"<kind>Leak_\w{1,40}</kind>\s*<xwhat>\s*<text>([^<]{1,400})</text>")
_XML_STACK = re.compile(rb"<stack>(.*?)</stack>", re.DOTALL)
_XML_FRAME = re.compile(rb"<frame>(.*?)</frame>", re.DOTALL)
_XML_FIELD = re.compile(rb"<(ip|obj|fn|file|line)>([^<]*)</")


def recognizes(data: bytes) -> bool:
    return _XML.match(data, 0, 4096) is not None or _BANNER in data


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The report at the end of the program; ``name`` is only for messages. Raises FormatError, UnusableError."""
    return _of_xml(data, name) if _XML.match(data, 0, 4096) else _of_text(data, name)


def _of_text(data: bytes, name: str) -> Records:
    start = data.rfind(_SUMMARY)
    if start < 0:
        raise UnusableError(name, f"has no leaks in it: {_SHOW}, and let the program end")
    start = data.rfind(b"\n", 0, start) + 1
    process = _LINE.search(data, start)
    # With --time-stamp=yes a blank is before the number.
    began = max(data.rfind(mark + process[1] + _BANNER, 0, start) for mark in (b"=", b" ")) if process else -1
    if began >= 0 and data.find(_SUMMARY, began, start) >= 0:
        raise UnusableError(name, "has reports of several processes: write a file for each, --log-file=memcheck.%p")
    builder = StackBuilder(name)
    known: dict[str, int] = {}
    shown: Counter[str] = Counter()
    sums: dict[str, tuple[int, int]] = {}
    record, places = None, []
    for text in _lines_of_one(data[start:]):
        found = _RECORD.match(text)
        if text.startswith(("   at 0x", "   by 0x")) and record is not None:
            place = text[6:]
            if place not in known:
                known[place] = builder.named(frame_of(place) or Frame(place, ""))
            places.append(known[place])
            continue
        if record is not None:
            builder.add(places, record)
            record, places = None, []
        if found is not None:
            record = (_number(found[4]), _number(found[2] or found[1]))
            shown[found[5]] += record[1]
        total = _SUM.match(text)
        if total is not None:
            sums[total[1]] = (_number(total[3]), _number(total[2]))
        if "suppressed" in sums or "no leaks are possible" in text:
            break
    else:
        line = data.count(b"\n", 0, start) + 1
        raise FormatError(name, line, "a report that ends with 'LEAK SUMMARY:' (it is cut off)")
    if not shown and any(size for _blocks, size in sums.values()):
        raise UnusableError(name, f"has only the sum of what was not freed, and no stacks: {_SHOW}")
    for kind, (blocks, size) in sums.items():
        if kind not in shown and size:
            builder.add([], (blocks, size))
        elif shown[kind] != size:
            raise UnusableError(name, f"its stacks hold {shown[kind]} of {size} bytes {kind}: lines are missing")
    return builder.records(Measure.LIVE, EXACT)


def _lines_of_one(data: bytes) -> Iterator[str]:
    """The lines of the process that the first one is of, without what valgrind puts before them."""
    process = None
    for line in data.split(b"\n"):
        found = _LINE.search(line)
        if found is None:
            continue
        process = process or found[1]
        if found[1] == process:
            yield found[2].rstrip().decode("utf-8", "replace")


def _number(text: str) -> int:
    return int(text.replace(",", "") or "0")


def _of_xml(data: bytes, name: str) -> Records:
    end = data.rfind(_XML_END)
    if end < 0 or b"</valgrindoutput>" not in data[-4096:]:
        why = "a report of a program that has ended, with 'FINISHED' and '</valgrindoutput>' (it is cut off)"
        raise FormatError(name, data.count(b"\n") + 1, why)
    builder = StackBuilder(name)
    known: dict[bytes, int] = {}
    for error in _XML_ERROR.finditer(data, end):
        what, stack = _XML_WHAT.search(error[1]), _XML_STACK.search(error[1])
        if what is None or stack is None:  # another error than a leak
            continue
        record = _RECORD.match(what[1].decode("ascii", "replace"))
        if record is None:
            line = data.count(b"\n", 0, error.start()) + 1
            raise FormatError(name, line, "'9 bytes in 1 blocks are definitely lost ...'", what[1])
        places = []
        for frame in _XML_FRAME.findall(stack[1]):
            if frame not in known:
                known[frame] = builder.named(_xml_frame(frame))
            places.append(known[frame])
        builder.add(places, (_number(record[4]), _number(record[2] or record[1])))
    if not len(builder):
        raise UnusableError(name, f"has no leaks in it: {_SHOW}, and let the program end")
    begin, stop = map(data.find, _XML_OPTIONS)
    whole = begin < 0 or _SHOWS_ALL.search(data, begin, max(begin, stop))
    return builder.records(Measure.LIVE if whole else Measure.LARGEST, EXACT)


def _xml_frame(text: bytes) -> Frame:
    fields = {key: html.unescape(value.decode("utf-8", "replace")) for key, value in _XML_FIELD.findall(text)}
    function = fields.get(b"fn") or f"[{fields.get(b'ip', '0x0').lower()}]"
    line = fields.get(b"line", "")
    number = int(line) if re.fullmatch("[0-9]{1,9}", line) else 0
    return Frame(function, PurePosixPath(fields.get(b"obj", "")).name, file=fields.get(b"file", ""), line=number)
