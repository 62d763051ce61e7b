# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Docstrings have one markup: names and code in double backticks. Ansible's markup is for Ansible's documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept

SOURCES = [path for path in kept() if path.suffix == ".py"]
OTHER_MARKUP = re.compile(
    r"\bC\([^)]*\)|(?<![\w*])\*[a-z_]+\*(?![\w*])|^\s*:(raises|param|returns?)\b|:class:`", re.MULTILINE
)


def docstrings(source: str) -> Iterator[str]:
    """All docstrings of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node, clean=False) or ""


def strange_markup(source: str) -> list[str]:
    return [found[0] for text in docstrings(source) for found in OTHER_MARKUP.finditer(text)]


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_docstrings_have_one_markup(path: Path) -> None:
    assert strange_markup((ROOT / path).read_text()) == []


def test_other_markups_are_seen() -> None:
    for words in ("Of C(size) bytes.", "What *name* is.", "One.\n\n    :raises OSError: always", "See :class:`x`."):
        assert strange_markup(f'def made():\n    """{words}"""\n'), words
    assert strange_markup('def made():\n    """Of ``size`` bytes, 2 * 3 * 4, **options."""\n') == []
