# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Command lines and settings without their secrets, which nobody who reads a profile needs.

Of a command line only what is known to be no secret is kept: the program, names of options, sizes and switches of a
JVM, and the script, class or archive that an interpreter runs. No list of names that secrets have would ever end.

A setting must be shown nevertheless. There, what counts as a secret is the value of an option or a variable whose name
says so, and the user in a URL. Names are guesses, so too much is taken rather than too little: nothing of a word stays
behind the name and its sign.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
from typing import Sequence

#: stands for what was taken out
HIDDEN = "***"
_INTERPRETER = re.compile(r"(java|python|pypy|node|nodejs|ruby|perl|php)[\d.]*")
# Paths, as a class path has, or the name of a module; and what is a file or a class by its look.
_PATHS = re.compile(r"[\w.+$:*/ -]+")
_RUN = re.compile(r"(?=[^./]*[./])[\w.+$/-]+")
_BEFORE_PATHS, _BEFORE_NAMES = ("-cp", "-classpath"), ("-jar", "-m")
_SWITCHES = frozenset("-server -client -ea -esa -u -B -O -OO -s -S -v -w".split())
# The same to Perl and Ruby have a value, which is the next word.
_OF_PYTHON = ("-E", "-I")
_OF_A_JVM = re.compile(r"-X(m[nsx]|ss)\d+[kKmMgG]?|-XX:[+-]\w+|-XX:\w+=\d+[kKmMgG]?")
_NAME = re.compile(r"--[A-Za-z][\w.-]*|-D[\w.-]+|-XX:\w+")
_LONG = re.compile(r"--[A-Za-z][a-z0-9.-]*")
_TOKEN = re.compile(r"[\w.\-]+")
_SECRET = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)
# What follows a name, also in JSON or a shell's quotes.
_SIGN = re.compile(r"""\\?["']?\s*([=:])\s*\\?["']?|\s+""")


def known_words(words: Sequence[str]) -> list[str]:
    """The words of a command line, each as far as it is known to be no secret. Twice is the same as once."""
    kept = [_program(word) for word in words[:1]]
    looking = bool(kept and _INTERPRETER.fullmatch(os.path.basename(kept[0])))
    switches = _SWITCHES.union(_OF_PYTHON if looking and "py" in os.path.basename(kept[0]) else ())
    before, is_free = "", True  # is_free: the next word is not the value of an option that we do not know
    for word in words[1:]:
        if word.startswith("-"):
            kept.append(_option(word))
            is_free = "=" in word or bool(_OF_A_JVM.fullmatch(word)) or word in switches
        elif looking and before in _BEFORE_PATHS and _PATHS.fullmatch(word):
            kept.append(word)
            is_free = True
        elif looking and (before in _BEFORE_NAMES or is_free) and (_RUN if is_free else _PATHS).fullmatch(word):
            kept.append(word)
            looking = is_free = False
        else:
            kept.append(HIDDEN if word else word)
            is_free = False
        before = word
    return kept


def _program(word: str) -> str:
    """A program may have written a title over its name, with whatever in it (PostgreSQL: user and database)."""
    name = word.split(maxsplit=1)
    return word if len(name) < 2 else f"{name[0]} {HIDDEN}"


def _option(word: str) -> str:
    """Its name, if that ends somewhere, and a value that can only be a size, a number or a switch."""
    name, sign, _value = word.partition("=")
    if (
        _OF_A_JVM.fullmatch(word)
        or word in _SWITCHES
        or word in _BEFORE_PATHS
        or word in _BEFORE_NAMES
        or len(word) <= 2
    ):
        return word
    if sign and _NAME.fullmatch(name):
        return f"{name}={HIDDEN}"
    return word if not sign and _LONG.fullmatch(word) else f"{word[:2]}{HIDDEN}"


def without_secret(text: str) -> str:
    """One word of a command line, or one setting. Needs time in proportion to the text, whatever it is."""
    start, end = text.find("://"), text.rfind("@")
    if 0 <= start < end:
        text = f"{text[: start + 3]}{HIDDEN}{text[end:]}"
    for token in _TOKEN.finditer(text):
        sign = _SIGN.match(text, token.end())
        if sign and sign.end() < len(text) and _SECRET.search(token.group()) and _is_name(text, token.start(), sign):
            return text[: sign.end()] + HIDDEN
    return text


def _is_name(text: str, start: int, sign: re.Match[str]) -> bool:
    """Whether what is there names a value: not a path in a list of paths, nor a word of a sentence."""
    if sign.group(1) is None:
        return text[start] == "-"
    return sign.group(1) == "=" or text[start - 1 : start] not in ("/", "\\")
