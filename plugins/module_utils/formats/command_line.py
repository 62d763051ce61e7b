# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Command lines and settings without their secrets, which nobody who reads a profile needs.

What counts as a secret: the value of an option or a variable whose name says so, and the user in a URL. Names are
guesses, so too much is taken rather than too little: nothing of a word stays behind the name and its sign.

This module is private to the collection.
"""

from __future__ import annotations

import re
from typing import Sequence

#: stands for what was taken out
HIDDEN = "***"
_TOKEN = re.compile(r"[\w.\-]+")
_SECRET = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)
# What follows a name, also in JSON or a shell's quotes.
_SIGN = re.compile(r"""\\?["']?\s*([=:])\s*\\?["']?|\s+""")


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command line, each without its secrets, and without the value of an option in the word before."""
    behind = [False, *map(_asks_for_one, words)]
    return [HIDDEN if secret and word else without_secret(word) for secret, word in zip(behind, words)]


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


def _asks_for_one(word: str) -> bool:
    """Whether a word is an option whose value is the next word."""
    return word.startswith("-") and bool(_SECRET.search(word)) and bool(_TOKEN.fullmatch(word))
