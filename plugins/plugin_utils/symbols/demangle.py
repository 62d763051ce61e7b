# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Symbol names as people write them: demangled, without parameters, printable.

Mangled names come from files of hosts that are not trusted, and a few hundred bytes can expand to gigabytes: each back
reference may double the output. mangled_size.py computes what a name can expand to; one that is too long stays mangled.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ..base import libraries
from ..base.printable import printable
from .mangled_size import unfolds_within

pydemumble = libraries.optional("pydemumble")

_LONGEST_MANGLED = 4096
# Of 211,689 names in 843 libraries of Debian, LLVM and OpenJDK, 0.1 % may unfold to more.
_MOST_UNFOLDED = 4 << 20
_LONGEST_DEMANGLED = 1 << 16
_LONGEST_SHOWN = 1000
# gcc's and LLVM's marks for pieces of one function: demumble shows them as " (.part.0)". A function of Go may be
# called main.part.
_CLONE = re.compile(
    r"(?: \(\.[^()]*\)| \[clone [^\]]*\]|\.(?:part|constprop|isra|lto_priv|llvm)\.\d+|\.cold(?:\.\d+)?)+$"
)
# Of a library's function, where .symtab names the version that .dynsym has beside it: malloc@@GLIBC_2.2.5
_VERSION = re.compile(rb"(?<=[^@])@{1,2}[\w.+-]+\Z")
# Of a function, or of one that something inside it is named by: shop::Cart::total() const::'lambda'(int)
_QUALIFIERS = re.compile(r"(?: const| volatile| &&?| noexcept)+(?=::|$| requires )")
# In a constrained function, what follows its clause: a local variable, function or lambda.
_LOCAL = re.compile(r"::(?:['$]|\w+$|[^ (]{0,1000}(?:\(|\boperator ))")
_OPERATOR = re.compile(r"(?<![0-9A-Za-z_])operator(?![0-9A-Za-z_])")
# Of a template's arguments, and of its name with a class; and how many of the last ones are tried.
_NAME_END = re.compile(r"(?<=E)E")
_MOST_ENDS = 8
# What follows, if it has brackets that are no pairs, or a space before its template arguments; and operators that have
# a space in their names, and any parameters, as opposed to conversions, which have none.
_SYMBOL = re.compile(r"(?:\(\)|->\*?|<=>|<<=?|>>=?|[<>]=?)?(?: (?=<))?")
_SPACED = re.compile(r' (?:new|delete)\b|""')
_PLAIN = re.compile(r"([\w:~]+)\([^()]*\)(?: const)?")
_PAIRS = {"(": ")", "<": ">", "[": "]", "{": "}"}
_BRACKET = re.compile(r"[()<>\[\]{}]")
_OPENING = re.compile(r"[(<\[{]")
_ANONYMOUS = "(anonymous namespace)"
# What without_parameters can copy without a look at each character.
_RUN = re.compile(r"(?:[^(<\[{ o]|o(?!perator))+")


def readable(symbol: bytes) -> str:
    """The name to show for a symbol: ``_ZN2os6mallocEm8MEMFLAGS`` -> ``os::malloc``, ``inflate`` -> ``inflate``."""
    return _readable(symbol[: _LONGEST_MANGLED + 1])


@lru_cache(maxsize=16384)
def _readable(symbol: bytes) -> str:
    symbol = _VERSION.sub(b"", symbol)
    name = printable(symbol.decode("utf-8", "replace"))
    if symbol.startswith((b"_Z", b"_R")) and len(symbol) <= _LONGEST_MANGLED:
        if symbol.isascii() and unfolds_within(symbol, _MOST_UNFOLDED):
            demangled = pydemumble.demangle(name) or _of_local_template(name)
            if demangled and len(demangled) <= _LONGEST_DEMANGLED:
                name = without_parameters(printable(demangled))
    else:
        name = _CLONE.sub("", name) or name
    if len(name) <= _LONGEST_SHOWN:
        return name
    # The beginning is the class, with its arguments, and the end says which of its functions it is.
    return f"{name[: _LONGEST_SHOWN // 2 - 1]}…{name[-_LONGEST_SHOWN // 2 :]}"


def _of_local_template(symbol: str) -> str:
    """The name of a template inside of a function, as a generic lambda is one for clang: _ZZ4mainENK3$_0clIiEEDaT_.

    pydemumble knows no parameters of its parameters; so those of the function are left out, which are not shown.
    """
    ends = [found.end() for found in _NAME_END.finditer(symbol)] if symbol.startswith("_ZZ") else []
    without = (pydemumble.demangle(symbol[:end] + "vv") for end in ends[: -_MOST_ENDS - 1 : -1])
    return next(filter(None, without), "")


def without_parameters(demangled: str) -> str:
    """A demangled name without parameters, return type, qualifiers, requires clauses and marks of function pieces.

    ``void shop::add<int>(std::vector<int>&)::'lambda'(int)::operator()(int) const`` ->
    ``shop::add<int>::'lambda'::operator()``. Template arguments stay: they tell instances apart.
    """
    plain = _PLAIN.fullmatch(demangled)
    if plain is not None:  # most are: no need to look at each character
        return plain[1]
    text = _CLONE.sub("", demangled).replace("::friend ", "::")
    kept: list[str] = []
    name_start = 0
    position = 0
    while position < len(text):
        if (run := _RUN.match(text, position)) is not None:
            kept.append(run[0])
            position = run.end()
            continue
        character = text[position]
        if text.startswith("operator", position) and _OPERATOR.match(text, position):
            end = _operator_end(text, position)
            kept.append(text[position:end])
            position = end
        elif text.startswith(("(*", "(&"), position):
            return demangled  # returns a pointer to a function: the name is inside the brackets
        elif character == "(" and not text.startswith(_ANONYMOUS, position):
            position = _closing(text, position)
        elif character in _PAIRS:
            end = _closing(text, position)
            kept.append(text[position:end])
            position = end
        elif (qualifiers := _QUALIFIERS.match(text, position)) is not None:
            position = qualifiers.end()
        elif text.startswith(" requires ", position):
            position = _requirement_end(text, position)
        else:
            kept.append(character)
            position += 1
            if character == " " and (text[position : position + 1] != "(" or text.startswith(_ANONYMOUS, position)):
                name_start = len(kept)
    return "".join(kept[name_start:]).strip() or demangled


def _operator_end(text: str, position: int) -> int:
    """The end of an operator's name: up to its template arguments or parameters, or to the end."""
    position += len("operator")
    symbol = _SYMBOL.match(text, position)
    if not text.startswith((" ", '"'), position):
        return symbol.end() if symbol is not None else position
    parameters = "(" if _SPACED.match(text, position) else "()"
    while (bracket := _OPENING.search(text, position)) is not None and not text.startswith(parameters, bracket.start()):
        position = _closing(text, bracket.start())
    return bracket.start() if bracket is not None else len(text)


def _requirement_end(text: str, position: int) -> int:
    """The end of a requires clause: a bracket with something local to the function behind it, or the text's end."""
    while (bracket := _OPENING.search(text, position)) is not None:
        position = _closing(text, bracket.start())
        if text.startswith("::value", position):
            position += len("::value")
        if _LOCAL.match(text, position):
            return position
    return len(text)


def _closing(text: str, position: int) -> int:
    """The position after the bracket that closes the one at ``position``; nested brackets count, "->" does not."""
    expected = [_PAIRS[text[position]]]
    for bracket in _BRACKET.finditer(text, position + 1):
        character = bracket[0]
        if character in _PAIRS:
            expected.append(_PAIRS[character])
        elif character == expected[-1] and not (character == ">" and text[bracket.start() - 1] == "-"):
            expected.pop()
            if not expected:
                return bracket.end()
    return len(text)
