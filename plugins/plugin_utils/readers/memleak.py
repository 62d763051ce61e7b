# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The texts of bcc's memleak, the Python tool and the one of libbpf-tools: what was allocated since it began to look
and is not freed.

    [11:16:33] Top 2 stacks with outstanding allocations:
            80 bytes in 5 allocations from stack
                    0x000055815b2ee1ad      main+0x6d [allocs]

    [11:16:33] Top 2 stacks with outstanding allocations:
    80 bytes in 5 allocations from stack
            0 [<000055815b2ee1ad>] main+0x6d [/srv/allocs]

Of several reports, the last one counts. memleak stops in silence at its limits: what it may show (-T), the stacks that
it can hold, and the allocations that it can hold. A report at the first, by default ten stacks, has the largest ones;
one at any other is refused. The tool of libbpf prints as its top what it shows, so a number that looks like an option
is taken for one.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ..model.frame import Frame
from ..model.raw import Records, Told
from ..model.sampling import EXACT, Measure
from .format_error import FormatError, UnusableError
from .stack_builder import StackBuilder

_HEADING = re.compile(rb"^\[\d{1,2}:\d{1,2}:\d{1,2}\] Top (\d{1,9}) stacks with outstanding allocations:", re.MULTILINE)
_LEAK = re.compile(rb"\s*(\d{1,20}) bytes in (\d{1,20}) allocations from stack\s*\Z")
_PYTHON = re.compile(rb"\s+(?:0x[0-9a-f]{1,16}\s+)?(\S.*)\Z")
_LIBBPF = re.compile(rb"\s*\d{1,5} \[<[0-9a-f]{1,16}>\] (\S.*)\Z")
_ONE_BLOCK = re.compile(rb"\s+addr = [0-9a-fx]+ size = \d+\s*\Z")
# The tool of libbpf may say the line, or the image: leak+0x1f /srv/a.c:12, leak+0x1f [app], [app]; below an address
# with inlined calls it lists each function: leak@0x1150 /srv/a.c:12. A file begins at the first slash: to try all of
# them would take time with the square of their number.
_FUNCTION = re.compile(
    r"((?:(?! /).)*?)(?:\+0x([0-9a-f]{1,16})|@0x[0-9a-f]{1,16})?(?: (/.+?):(\d{1,9})(?::\d{1,9})?)?"
    r"(?:(?:\A(?!\[unknown\])| )\[([^\[\]]*)\])?\Z"
)
_INLINED = re.compile(rb"\(\d{1,9} entries\)\s*\Z")
_NAMELESS = ("[unknown]", "<null sym>", "")
_KERNEL = re.compile(rb"Attaching to kernel allocators|tracing kernel: true", re.IGNORECASE)
# BPF_STACK_TRACE(stack_traces, 10240) and BPF_HASH(allocs, 1000000), in both tools.
_MOST_STACKS, _MOST_BLOCKS = 10_240, 1_000_000


def recognizes(data: bytes) -> bool:
    return _HEADING.search(data[: 1 << 16]) is not None


def parse(data: bytes, name: str, _told: Told) -> Records:
    """The last report in ``data``; ``name`` is only for messages. Raises FormatError, UnusableError."""
    heading = None
    for heading in _HEADING.finditer(data):  # noqa: B007 - the last one counts
        pass
    if heading is None:
        raise FormatError(name, 1, "'[<time>] Top <n> stacks with outstanding allocations:'", data.split(b"\n", 1)[0])
    if _KERNEL.search(data, 0, heading.start()):
        raise UnusableError(name, "is about the kernel's own memory: give memleak the process, -p PID")
    first = data.count(b"\n", 0, heading.start()) + 1
    builder = StackBuilder(name)
    known: dict[bytes, int] = {}
    counts: tuple[int, int] | None = None
    places: list[int] = []
    libbpf = False
    for number, line in enumerate(data[heading.end() :].split(b"\n")[1:], first + 1):
        if not line.strip() or _ONE_BLOCK.match(line):
            continue
        leak = _LEAK.match(line)
        if leak is not None:
            if counts is not None:
                builder.add(places, counts)
            counts, places = (int(leak[2]), int(leak[1])), []
            continue
        frame = _LIBBPF.match(line)
        libbpf = libbpf or frame is not None
        frame = frame or _PYTHON.match(line)
        if frame is None or counts is None:
            raise FormatError(name, number, "'<n> bytes in <n> allocations from stack' or a frame", line)
        if _INLINED.match(frame[1]):
            continue
        if frame[1] not in known:
            known[frame[1]] = builder.named(_frame(frame[1].decode("utf-8", "replace").strip()))
        places.append(known[frame[1]])
    if counts is not None:
        builder.add(places, counts)
    top, stacks = int(heading[1]), len(builder)
    at_limit = stacks == top > 0 and (not libbpf or top % 10 == 0)
    records = builder.records(Measure.LARGEST if at_limit else Measure.LIVE, EXACT)
    _refuse_if_cut(name, top, stacks, records.total.objects, libbpf)
    return records


def _refuse_if_cut(name: str, top: int, stacks: int, blocks: int, libbpf: bool) -> None:
    if stacks > top:
        raise UnusableError(name, f"shows {stacks} stacks under a heading that promises {top}: it is damaged")
    if stacks < top and libbpf:
        raise UnusableError(name, f"shows {stacks} of {top} stacks: it is cut off")
    if stacks >= _MOST_STACKS:
        raise UnusableError(name, f"shows {stacks} stacks, all that memleak can hold: trace larger blocks, -z SIZE")
    if blocks >= _MOST_BLOCKS:
        raise UnusableError(name, f"counts {blocks} blocks, all that memleak can hold: trace only larger ones, -z SIZE")


def _frame(text: str) -> Frame:
    match = _FUNCTION.match(text)
    function, offset, file, line, image = match.groups() if match else (text, None, None, None, None)
    module = PurePosixPath(image or "").name
    if function in _NAMELESS:
        return Frame("" if module else "[unknown]", module, offset=int(offset or "0", 16))
    return Frame(function, module, file=file or "", line=int(line or 0))
