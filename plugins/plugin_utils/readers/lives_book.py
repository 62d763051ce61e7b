# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The book of lives that our agent writes beside a dump, ``offheap_lives/1``, into columns.

    offheap_lives/1 <sample interval in bytes>
    <when the book began> <when it was copied>            seconds since the epoch
    <births that found no room> <their bytes>
    @ 0x<leaf> 0x<caller> ... 0x<root>
    <births> <bytes> <deaths>
    [<bucket> <deaths> <milliseconds>]...                 of ages at death: how many, and their sum
    [<milliseconds since the book began> <bytes>]...      of each object that lives
    ... three more lines for each stack
    end <stacks> <living>

A book comes from a host that is not trusted. Whatever the bytes are, ``parse`` either returns a Book whose numbers
agree with each other, or raises LivesFormatError, and needs memory in proportion to the size of its input.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from ..base.durations import LATEST
from ..model.lives import BUCKETS, youngest
from .format_error import FormatError

MOST_STACKS, MOST_FRAMES = 1 << 16, 1 << 12
# As many milliseconds as forty years have.
_OLDEST = 40 * 366 * 86400 * 1000
_LARGEST = 1 << 47
_HEAD = re.compile(rb"offheap_lives/1 (\d{1,15})")
_TIMES = re.compile(rb"(\d{1,12}\.\d{3}) (\d{1,12}\.\d{3})")
_NUMBERS = re.compile(rb"\d{1,18}(?: \d{1,18})*")
_STACK = re.compile(rb"@((?: 0x[0-9a-f]{1,16})*)")
_END = re.compile(rb"end (\d{1,9}) (\d{1,9})")


class LivesFormatError(FormatError):
    """A book is not what the agent writes."""


@dataclass
class Book:
    """Times are seconds since the epoch. Stack ``i`` is ``addresses[ends[i - 1]:ends[i]]``, leaf first.

    ``deaths`` and ``ages`` have a row of BUCKETS for each stack, one after the other, the ages in milliseconds. Of each
    object that lives, ``stack`` is the stack, ``born`` the milliseconds since the book began, ``size`` its bytes.
    """

    interval: int
    began: float
    now: float
    lost: int
    addresses: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    births: array[int] = field(default_factory=lambda: array("Q"))
    deaths: array[int] = field(default_factory=lambda: array("Q"))
    ages: array[int] = field(default_factory=lambda: array("Q"))
    stack: array[int] = field(default_factory=lambda: array("I"))
    born: array[int] = field(default_factory=lambda: array("Q"))
    size: array[int] = field(default_factory=lambda: array("Q"))


def parse(data: bytes, name: str) -> Book:
    """The book in ``data``; ``name`` is only for messages. Raises LivesFormatError."""
    lines = _Lines(data, name)
    head = lines.match(_HEAD, "the header 'offheap_lives/1 <sample interval>'")
    times = lines.match(_TIMES, "when the book began and was copied")
    began, now = float(times[1]), float(times[2])
    if not 0 < began <= now <= LATEST:
        lines.refuse("a time at which a book can have begun")
    lost = lines.numbers("the births that found no room and their bytes", 2, 2)[0]
    book = Book(int(head[1]), began, now, lost)
    while (stack := lines.next_match(_STACK)) is not None:
        _read_stack(lines, book, stack[1].split())
    end = lines.match(_END, "a stack '@ 0x...', or 'end <stacks> <living>'")
    if (int(end[1]), int(end[2])) != (len(book.ends), len(book.stack)):
        lines.refuse(f"'end {len(book.ends)} {len(book.stack)}', as many as there are")
    lines.nothing_more()
    return book


def _read_stack(lines: _Lines, book: Book, addresses: list[bytes]) -> None:
    if len(book.ends) == MOST_STACKS or len(addresses) > MOST_FRAMES:
        lines.refuse(f"at most {MOST_STACKS} stacks of {MOST_FRAMES} frames")
    book.addresses.extend([int(address, 16) for address in addresses])
    book.ends.append(len(book.addresses))
    births, _size, deaths = lines.numbers("births, bytes and deaths", 3, 3)
    row, sums = array("Q", bytes(8 * BUCKETS)), array("Q", bytes(8 * BUCKETS))
    died = lines.numbers("ages at death, as bucket, deaths and milliseconds", 3, 3 * BUCKETS)
    last = -1
    for bucket, count, together in zip(died[::3], died[1::3], died[2::3], strict=True):
        if not last < bucket < BUCKETS or not _lowest(bucket) * count <= together < _lowest(bucket + 1) * count:
            lines.refuse("ascending buckets with ages that lie in them")
        last = bucket
        row[bucket], sums[bucket] = count, together
    living = lines.numbers("when each object that lives was born, and its bytes", 2, len(lines.line))
    born, size = living[::2], living[1::2]
    if births - deaths != len(born) or sum(row) != deaths:
        lines.refuse(f"{births - deaths} objects that live: the births less the deaths")
    # The clock of births is read before the time of the copy, and is a coarse one.
    if born and (max(born) > (book.now - book.began) * 1000 + 1000 or max(size) > _LARGEST):
        lines.refuse("births before the book was copied, of sizes that there are")
    book.births.append(births)
    book.deaths.extend(row)
    book.ages.extend(sums)
    book.stack.extend([len(book.ends) - 1] * len(born))
    book.born.extend(born)
    book.size.extend(size)


def _lowest(bucket: int) -> int:
    """The age in milliseconds at which a bucket begins. The last one has no end."""
    if bucket == BUCKETS:
        return _OLDEST
    return round(1000 * youngest(bucket))


class _Lines:
    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        self._rest: Iterator[bytes] = iter(data.split(b"\n"))
        self._is_cut = not data.endswith(b"\n")
        self._number = 0
        self.line = self._before = b""
        self._advance()

    def _advance(self) -> None:
        self._number += 1
        self._before = self.line
        self.line = next(self._rest, b"")

    def next_match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """The match of the next line, which it then goes past; None if it is another one."""
        match = pattern.fullmatch(self.line)
        if match is not None:
            self._advance()
        return match

    def match(self, pattern: re.Pattern[bytes], expected: str) -> re.Match[bytes]:
        match = self.next_match(pattern)
        if match is None:
            self.fail(expected)
        return match

    def numbers(self, expected: str, group: int, most: int) -> list[int]:
        """Those of the next line, in whole groups; a line of exactly one group must be there."""
        least = group if most == group else 0
        found = [int(number) for number in self.line.split(b" ")] if _NUMBERS.fullmatch(self.line) else []
        if (self.line and not found) or len(found) % group or not least <= len(found) <= most:
            self.fail(expected)
        self._advance()
        return found

    def nothing_more(self) -> None:
        if self._is_cut:
            self.refuse("the end of the last line")
        if self.line or next(self._rest, None) is not None:
            self.fail("nothing behind the end")

    def refuse(self, expected: str) -> NoReturn:
        """Because of the line that it has just gone past."""
        raise LivesFormatError(self._name, self._number - 1, expected, self._before)

    def fail(self, expected: str) -> NoReturn:
        raise LivesFormatError(self._name, self._number, expected, self.line)
