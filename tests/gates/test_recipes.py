# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Each recipe of docs/recipes.md is followed in a copy of the tree: its test fails before its code is there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept

_STEP = re.compile(
    r"^In `(?P<path>[^`]+)`(?:, after `(?P<line>[^`]+)`)?(?P<below>, and the line below it)?:\n\n"
    r"```\w+\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"^```console\n\.venv/bin/python -m (pytest .+)\n```$", re.MULTILINE)
_NEEDED = ("plugins", "tests/unit", "tests/conftest.py", "pyproject.toml", "roles", "meta", "docs", "galaxy.yml")


class Step(NamedTuple):
    """``text`` becomes the file at ``path``, or comes after the one line there that begins with ``line``."""

    path: str
    line: str
    below: bool
    text: str

    def follow(self, tree: Path) -> None:
        file = tree / self.path
        if not self.line:
            assert not file.exists(), f"{self.path} is there already"
            file.write_text(self.text, encoding="utf-8")
            return
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (at,) = (number for number, line in enumerate(lines, 1 + self.below) if line.startswith(self.line))
        file.write_text("".join([*lines[:at], self.text, *lines[at:]]), encoding="utf-8")


class Recipe(NamedTuple):
    steps: list[Step]
    command: list[str]


def _recipes() -> dict[str, Recipe]:
    _head, *parts = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split("\n## ")
    found = {}
    for part in parts:
        (command,) = _COMMAND.findall(part)
        steps = [Step(one["path"], one["line"] or "", bool(one["below"]), one["text"]) for one in _STEP.finditer(part)]
        found[part.partition("\n")[0]] = Recipe(steps, shlex.split(command))
    return found


RECIPES = _recipes()


@pytest.mark.parametrize("name", RECIPES)
def test_who_follows_it_gets_what_it_says(name: str, tmp_path: Path) -> None:
    for path in kept():
        if str(path).startswith(_NEEDED):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, tmp_path / path)
    recipe = RECIPES[name]

    def tested() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", *recipe.command, "-q", "-p", "no:cacheprovider"]
        return subprocess.run(argv, cwd=tmp_path, text=True, capture_output=True, check=False)

    its_test, *its_code = recipe.steps
    its_test.follow(tmp_path)
    assert tested().returncode == 1, "its test passes without its code"
    for step in its_code:
        step.follow(tmp_path)
    done = tested()
    assert done.returncode == 0, done.stdout[-3000:]
