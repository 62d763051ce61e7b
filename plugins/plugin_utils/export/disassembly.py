# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A function's machine instructions, by binutils' objdump, with what was allocated at each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ..base.errors import ControllerError
from ..base.printable import printable
from ..symbols.elf_image import ElfImage, SymbolError
from ..views.selection import SelectionError, compiled
from ..views.table import Table
from . import top

_SECONDS = 60
# Without a symbol, instructions this many bytes around the address are disassembled.
_BEYOND = 64
_MOST_BYTES = 1 << 20
# As a file of debug information alone, or one without section headers, by which objdump goes.
_NO_CODE = "has no code there that objdump shows: is it the program or library itself, as its package has it?"
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s*(.*)")


class DisassemblyError(ControllerError):
    """Nothing can be disassembled. The message says why and what helps."""


def render(table: Table, pattern: str, look: top.Look, find_image: Callable[[str, str], Path | None]) -> str:
    """The disassembly of the functions that match. Raises SelectionError or DisassemblyError."""
    program = shutil.which("objdump")
    if program is None:
        raise DisassemblyError("disassembly needs objdump, which is not on PATH: install the package binutils")
    search = compiled(pattern).search
    samples = table.samples
    chosen = [
        search(samples.frames[frame].function) is not None if samples.frames[frame].function else False
        for frame in samples.place_frame.tolist()
    ]
    if not any(chosen):
        raise SelectionError(f"no function of the profile matches {pattern!r}")
    at = samples.place_location.tolist()
    flat: dict[int, float] = {}
    cumulative: dict[int, float] = {}
    for stack, value in zip(samples.each_stack(), table.values.tolist(), strict=True):
        places = stack.tolist()
        if places and chosen[places[0]]:
            flat[at[places[0]]] = flat.get(at[places[0]], 0.0) + value
        for location in {at[place] for place in places if chosen[place]}:
            cumulative[location] = cumulative.get(location, 0.0) + value
    images: dict[tuple[str, str, str], list[int]] = {}
    for location in cumulative:
        its = samples.locations[location]
        images.setdefault((its.build_id, its.sha256, its.path), []).append(location)
    lines = [top.total_line(table, look)]
    for (build_id, sha256, path), found in sorted(images.items()):
        image = find_image(build_id, sha256) if build_id else None
        if image is None:
            raise DisassemblyError(
                f"no image of {path or 'these frames'} was found with build-id {build_id or '(unknown)'}"
            )
        lines.extend(_image(program, image, path, [(x, flat.get(x, 0.0), cumulative[x]) for x in found], table, look))
    return "\n".join(lines) + "\n"


def _image(
    program: str, image: Path, path: str, found: list[tuple[int, float, float]], table: Table, look: top.Look
) -> Iterator[str]:
    try:
        elf = ElfImage(image)
        symbols = elf.symbols()
        ranges = symbols.ranges()
    except SymbolError as error:
        raise DisassemblyError(str(error)) from error
    numbers: dict[int, tuple[float, float]] = {}
    functions: dict[tuple[int, int], bytes] = {}
    for location, flat, cumulative in found:
        address = elf.virtual_address(table.samples.locations[location].offset)
        if address is None:
            continue
        numbers[address] = (flat, cumulative)
        name = symbols.lookup(address)
        covering = [extent for extent in ranges if extent[0] <= address < extent[1]] if name else []
        extent = max(covering, default=(max(address - _BEYOND, 0), address + _BEYOND))
        functions[extent] = name or b""
    if not functions:
        raise DisassemblyError(f"{image} {_NO_CODE}")
    for (start, end), symbol in sorted(functions.items()):
        shown = printable(symbol.decode("utf-8", "replace")) or f"{PurePosixPath(path).name}+{start:#x}"
        yield ""
        yield f"{shown} in {path}"
        yield f"{'flat':>10} {'cum':>10}   instruction"
        yield from _instructions(program, image, start, min(end, start + _MOST_BYTES), numbers, table, look)


def _instructions(
    program: str,
    image: Path,
    start: int,
    end: int,
    numbers: dict[int, tuple[float, float]],
    table: Table,
    look: top.Look,
) -> Iterator[str]:
    bounds = [f"--start-address={start:#x}", f"--stop-address={end:#x}"]
    command = [program, "-d", "-C", "--no-show-raw-insn", *bounds, os.path.abspath(image)]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise DisassemblyError(f"{program} took over {_SECONDS} s for {image}") from error
    except OSError as error:
        raise DisassemblyError(f"{program}: {error.strerror or error}") from error
    if result.returncode:
        raise DisassemblyError(f"{program}: {printable(result.stderr.decode('utf-8', 'replace').strip())[:500]}")
    lines = [_INSTRUCTION.fullmatch(line) for line in result.stdout.decode("utf-8", "replace").splitlines()]
    instructions = [(int(match[1], 16), match[2].expandtabs()) for match in lines if match and match[2]]
    if not instructions:
        raise DisassemblyError(f"{image} {_NO_CODE}")
    following = [address for address, _text in instructions[1:]] + [end]
    for (address, text), next_address in zip(instructions, following, strict=True):
        # A number belongs to the last byte of its call.
        inside = [numbers[at] for at in range(address, min(next_address, address + 16)) if at in numbers]
        sums = [sum(pair[0] for pair in inside), sum(pair[1] for pair in inside)]
        amounts = [table.measure.text(value, look.exact) if value else "." for value in sums]
        yield f"{amounts[0]:>10} {amounts[1]:>10}   {address:x}: {printable(text)}"
