# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How much a mangled name can unfold to, told from its text alone.

A reference stands for an earlier part of the name, which may have references itself, so that each can double what is
written. Which part that is only a demangler knows. But in C++ (Itanium C++ ABI, "Compression") parts are numbered in
the order in which they end: what has the number k can only have references inside that stand before all that is known
to be numbered k or more. In Rust (RFC 2603) a reference has the position of its part. The sum over all references is
never too small, and for the names that compilers write it is small.
"""

from __future__ import annotations

import re

# S1_ has a number; T1_ may stand for anything before it; Dp and the like repeat what follows for each item of a pack
# (fL0p_ is a parameter).
_CXX = re.compile(rb"(?P<kind>[ST])(?P<number>[0-9A-Z]*)_|(?P<pack>Dp|sp|f(?:[lrR]|L(?![0-9])))")
_PACK = re.compile(rb"Dp|sp|f[lrLR]")
# How a pack with items begins: without one, nothing is repeated.
_ITEMS = re.compile(rb"J(?!E)")
# A number may be the length of the identifier that follows; where nothing else can be meant, a group is there.
_LENGTH = re.compile(
    rb"(?<![0-9])(?:(?:(?<=N)|(?<=St))([0-9]+)(?![0-9E])|(12)(?=_GLOBAL__N_1)"
    rb"|(?<![CDFLv])(?<![Es_]_)(?<!L.)([0-9]+)(?![0-9E_])|[0-9]+)"
)
# Operators that end with S, and what a type's name is mangled as: an S behind them may begin no reference.
_BEFORE_S = b"alrT"
_RUST = re.compile(rb"B([0-9A-Za-z]*)_")
_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS_62 = {digit: value for value, digit in enumerate(_ALPHABET)}


def unfolds_within(symbol: bytes, most: int) -> bool:
    """Whether ``most_unfolded`` is at most this, mostly without a look at each reference.

    A reference ends with an underscore, and doubles at most what stands before it; only a pack can do more.
    """
    if len(symbol) << symbol.count(b"_") <= most and not _PACK.search(symbol):
        return True
    return most_unfolded(symbol) <= most


def most_unfolded(symbol: bytes) -> int:
    """The most characters of the mangled name, copies counted, that are written when it is demangled.

    ``symbol`` begins with _Z (C++) or _R (Rust).
    """
    return _rust(symbol) if symbol.startswith(b"_R") else _cxx(symbol)


def _cxx(symbol: bytes) -> int:
    total = len(symbol)
    packs, items = 1, len(symbol) if _ITEMS.search(symbol) else 1
    references: list[tuple[int, int]] = []  # what each stands for, and the highest number known before its end
    highest = -1
    maybe_name, surely_name = 0, 0  # where the identifiers so far end
    lengths = _LENGTH.finditer(symbol)
    length = next(lengths, None)
    for found in _CXX.finditer(symbol):
        start = found.start()
        while length is not None and length.end() <= start:
            begin, after = max(length.start(), surely_name), length.end()
            if begin < after:  # else it is a part of a name
                end = after + int(symbol[begin : min(after, begin + 6)])
                behind_name = begin == surely_name and symbol[after : after + 1] != b"E"
                if begin >= maybe_name and (length.lastindex or behind_name):
                    surely_name = end
                maybe_name = max(maybe_name, end)
            length = next(lengths, None)
        if found["pack"] is not None:
            packs *= 1 if start < surely_name else items
            continue
        # Inside an identifier it is no reference. What may lie in one counts as a reference, and proves no number.
        proves = found["kind"] == b"S" and start >= maybe_name and symbol[start - 1] not in _BEFORE_S
        number = int(found["number"], 36) + 1 if found["number"] and len(found["number"]) < 5 else 0
        inside = [size for size, before in references if not proves or before < number]
        size = start + sum(inside)
        if proves and number < start:
            highest = max(highest, number)
        references.append((size, highest))
        total += size
    return total * packs


def _rust(symbol: bytes) -> int:
    total = len(symbol)
    references: list[tuple[int, int]] = []  # where each stands, and what for
    for found in _RUST.finditer(symbol):
        start = found.start()
        place = 0
        for digit in found[1]:
            place = place * 62 + _DIGITS_62[digit]
        place += 2 + bool(found[1])
        if place < start:
            size = start - place + sum(size for at, size in references if at >= place)
            references.append((start, size))
            total += size
    return total
