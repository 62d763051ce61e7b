# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The stacks of a heap profile, many at once.

A dump of a large service has millions of addresses, so nothing here handles them one by one: numpy finds the line
feeds, the letters x and the colons in a block of text and turns the digits between them into numbers, eight digits to
a word. Text that is not exactly as jemalloc writes it raises Irregular; heap_v2 then says where and why. Reading in
blocks bounds the memory needed besides the columns.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from ..base import libraries
from ..base.errors import ControllerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Positions = NDArray[np.int64]
    Words = NDArray[np.uint64]
else:
    np = libraries.optional("numpy")

_BLOCK = 1 << 18
_LARGEST = (1 << 64) - 1
_MOST_DIGITS, _MOST_HEX = 20, 16
# The same byte eight times.
_EACH = 0x0101010101010101
# Masks by the number of digits in a word: the digits are its last characters, which are its highest bytes.
_KEPT = [0, *(_LARGEST << 8 * (8 - digits) & _LARGEST for digits in range(1, 9))]
_LINE_FEED, _AT, _X, _COLON, _BRACKET, _STAR, _CLOSING = b"\n@x:[*]"
# Two characters as numpy reads them.
_ZERO_AFTER_SPACE, _TWO_SPACES = (int.from_bytes(text, "little") for text in (b" 0", b"  "))


class Irregular(ControllerError):
    """A block is not what jemalloc writes; ``start`` and ``end`` are its bounds in the dump."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        super().__init__(start, end)


class StackColumns:
    """The stacks of a dump, in columns like those of ``raw.Records``; ``addresses`` ascend."""

    def __init__(self) -> None:
        self.addresses = array("Q")
        self.stack_addresses = array("I")
        self.stack_ends = array("Q")
        self.counts = tuple(array("Q") for _column in range(4))
        self.thread_stack = array("I")
        self.thread_uid = array("Q")
        self.thread_counts = tuple(array("Q") for _column in range(4))


def read(data: bytes, start: int, end: int) -> StackColumns:
    """Read the records from ``start``, which at least 16 bytes must precede, to ``end``. Raises Irregular."""
    reader = _Reader(data)
    while start < end:
        stop = end
        if end - start > _BLOCK:
            stop = data.rfind(b"\n@", start, start + _BLOCK) + 1 or data.find(b"\n@", start + _BLOCK, end) + 1 or end
        if not reader.read(start, stop):
            raise Irregular(start, stop)
        start = stop
    reader.number_addresses()
    return reader.columns


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.columns = StackColumns()
        self._data = data
        self._bytes: Bytes = np.frombuffer(data, dtype=np.uint8)
        # At each position, the next two and the next eight characters as one number.
        self._pairs = np.ndarray((len(data) - 1,), "<u2", buffer=data, strides=(1,))
        self._words = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
        # For each block, its distinct addresses and its number of addresses.
        self._blocks: list[tuple[Words, int]] = []

    def read(self, start: int, end: int) -> bool:
        """Add a block's records to the columns. False if the block is irregular."""
        block = self._bytes[start:end]
        marked = block == _LINE_FEED
        for mark in (_X, _COLON, _BRACKET):
            marked |= block == mark
        marks = np.flatnonzero(marked) + start
        marked_by = self._bytes[marks]
        line_ends = marks[marked_by == _LINE_FEED]
        if not len(line_ends) or line_ends[-1] != end - 1:
            return False
        lines = np.concatenate((np.array([start]), line_ends[:-1] + 1))
        is_stack = self._bytes[lines] == _AT
        is_total = self._bytes[lines + 3] == _STAR
        if not is_stack[0] or is_stack[-1] or (is_total[1:] != is_stack[:-1]).any():
            return False
        stacks_before = len(self.columns.stack_ends)
        if not self._read_stacks(marks[marked_by == _X], lines[is_stack], line_ends[is_stack]):
            return False
        is_count = ~is_stack
        is_total = is_total[is_count]
        stack = np.cumsum(is_total) + (stacks_before - 1)
        separators = (marks[marked_by == _COLON], marks[marked_by == _BRACKET])
        return self._read_counts(separators, lines[is_count], line_ends[is_count], is_total, stack)

    def _read_stacks(self, letters: Positions, lines: Positions, line_ends: Positions) -> bool:
        """Read the lines of addresses. ``letters`` are the positions of each x in the block."""
        ends = np.searchsorted(letters, line_ends)
        if ends[-1] != len(letters):
            return False
        lengths = np.diff(ends, prepend=0)
        some = lengths > 0
        address_ends = np.empty_like(letters)
        address_ends[:-1] = letters[1:] - 2
        address_ends[ends[some] - 1] = line_ends[some]
        if (line_ends[~some] != lines[~some] + 1).any() or (letters[(ends - lengths)[some]] != lines[some] + 3).any():
            return False
        if (self._pairs[letters - 2] != _ZERO_AFTER_SPACE).any():
            return False
        addresses = self._numbers(letters + 1, address_ends, _MOST_HEX, 16)
        if addresses is None:
            return False
        distinct, position = np.unique(addresses, return_inverse=True)
        columns = self.columns
        _extend(columns.stack_ends, ends + len(columns.stack_addresses))
        _extend(columns.stack_addresses, position)
        self._blocks.append((distinct, len(addresses)))
        return True

    def _read_counts(
        self, separators: tuple[Positions, Positions], lines: Positions, line_ends: Positions,
        is_total: NDArray[np.bool_], stack: Positions,
    ) -> bool:  # fmt: skip
        """Read the lines "  t<n>: <n>: <n> [<n>: <n>]", where the first n is a star in totals.

        ``separators`` are the positions of all colons and of all opening brackets, ``stack`` is the stack of each line.
        """
        colons, brackets = separators
        if len(brackets) != len(lines) or len(colons) != 3 * len(lines):
            return False
        first, second, third = colons.reshape(-1, 3).T
        last = line_ends - 1
        regular = (lines + 3 < first) & (second < brackets) & (brackets < third) & (third < last)
        if not regular.all() or (first[is_total] != lines[is_total] + 4).any():
            return False
        regular = (self._pairs[lines] == _TWO_SPACES) & (self._bytes[lines + 2] == ord("t"))
        for space in (first + 1, second + 1, brackets - 1, third + 1):
            regular &= self._bytes[space] == ord(" ")
        if not regular.all() or (self._bytes[last] != _CLOSING).any():
            return False
        is_thread = ~is_total
        columns = self.columns
        fields = ((first + 2, second), (second + 2, brackets - 1), (brackets + 1, third), (third + 2, last))
        for total, thread, field in zip(columns.counts, columns.thread_counts, fields, strict=True):
            counts = self._numbers(*field, _MOST_DIGITS, 10)
            if counts is None:
                return False
            _extend(total, counts[is_total])
            _extend(thread, counts[is_thread])
        uids = self._numbers(lines[is_thread] + 3, first[is_thread], _MOST_DIGITS, 10)
        if uids is None:
            return False
        _extend(columns.thread_stack, stack[is_thread])
        _extend(columns.thread_uid, uids)
        return True

    def _numbers(self, starts: Positions, ends: Positions, most: int, base: int) -> Words | None:
        """The numbers between these positions, None unless all have 1 to ``most`` digits and fit 64 bits."""
        if not len(starts):
            return np.zeros(0, dtype=np.uint64)
        lengths = ends - starts
        longest = lengths.max()
        if lengths.min() < 1 or longest > most:
            return None
        kept = np.array(_KEPT, dtype=np.uint64)
        numbers = _parsed(self._words[ends - 8], kept[np.minimum(lengths, 8)], base)
        if numbers is not None and longest > 8:
            more = _parsed(self._words[ends - 16], kept[np.clip(lengths - 8, 0, 8)], base)
            numbers = None if more is None else numbers + more * np.uint64(base**8)
        if numbers is not None and longest > 16:
            # Only petabytes have so many digits, so this is rare.
            for at in np.flatnonzero(lengths > 16).tolist():
                digits = self._data[starts[at] : ends[at]]
                if not digits.isdigit() or int(digits) > _LARGEST:
                    return None
                numbers[at] = int(digits)
        return numbers

    def number_addresses(self) -> None:
        """Number the addresses of all blocks together, after the last block."""
        if not self._blocks:
            return
        addresses = np.concatenate([distinct for distinct, _count in self._blocks])
        addresses.sort(kind="stable")  # those of each block are sorted, and this merges them
        first = np.ones(len(addresses), dtype=np.bool_)
        np.not_equal(addresses[1:], addresses[:-1], out=first[1:])
        addresses = addresses[first]
        _extend(self.columns.addresses, addresses)
        numbers = np.asarray(self.columns.stack_addresses)
        start = 0
        for distinct, count in self._blocks:
            part = numbers[start : start + count]
            part[:] = np.searchsorted(addresses, distinct)[part]
            start += count


def _parsed(words: Words, kept: Words, base: int) -> Words | None:
    """The numbers in words of up to eight digits, masked by ``kept``; None if any character is not a digit."""
    text = (words ^ 0x30 * _EACH) & kept  # 0 to 9 are themselves, a to f are 0x51 to 0x56
    letters = text >> 6 & _EACH
    text ^= letters * 0x50
    digits = text + letters * 9
    wrong = (text | digits) & 0xF0 * _EACH
    wrong |= (digits + 6 * _EACH) >> 4 & _EACH ^ letters  # exactly the digits from ten on are letters
    if base == 10:
        wrong |= letters
    if wrong.any():
        return None
    # Join neighbours: two digits, four, eight. The first character is the lowest byte and the most significant digit.
    digits = digits * (base << 8 | 1) >> 8 & 0x00FF00FF00FF00FF
    digits = digits * (base**2 << 16 | 1) >> 16 & 0x0000FFFF0000FFFF
    return (digits * (base**4 << 32 | 1) >> 32).astype(np.uint64, copy=False)


def _extend(column: array[int], values: NDArray[np.generic]) -> None:
    column.frombytes(values.astype(f"u{column.itemsize}", copy=False).tobytes())
