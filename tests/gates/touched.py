# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which unit tests a change touches: those of the rooms that changed, and those that import what changed."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "ansible_collections.offheap.profiler"
UNIT = Path("tests", "unit")


def changed_files(root: Path) -> list[Path]:
    """What is not committed, and what the commits since origin/main changed; without one, what is not committed."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return [name for name in done.stdout.split("\0") if name] if done.returncode == 0 else []

    base = git("merge-base", "HEAD", "origin/main")
    since = base[0].strip() if base else "HEAD"
    names = {
        *git("diff", "--name-only", "--no-renames", "-z", since),
        *git("ls-files", "-o", "--exclude-standard", "-z"),
    }
    return sorted(map(Path, names))


def unit_tests(root: Path, changed: Iterable[Path]) -> list[Path]:
    """The files of unit tests that mirror a changed file's room, or import a changed file, however far away."""
    rooms = {UNIT / path.parent for path in changed if path.parent.parts}
    importers = _importers(root)
    reached, news = set(), {path for path in changed if path.suffix == ".py"}
    while news:
        reached |= news
        news = {importer for path in news for importer in importers[path]} - reached
    tests = (path.relative_to(root) for path in (root / UNIT).rglob("test_*.py"))
    return sorted(path for path in tests if path in reached or path.parent in rooms)


def _importers(root: Path) -> dict[Path, set[Path]]:
    """By file, the files that import it."""
    importers: dict[Path, set[Path]] = defaultdict(set)
    for directory in ("plugins", "console", "tests"):
        for path in (root / directory).rglob("*.py"):
            if "node_modules" not in path.parts:
                file = path.relative_to(root)
                for module in _imported(file, path.read_text()):
                    importers[module].add(file)
    return importers


def _imported(file: Path, text: str) -> Iterator[Path]:
    """The files that a file may import: ``from room import name`` means room/name.py or room.py."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = file.parts[: -node.level]
                module = ".".join([PACKAGE, *above, *([module] if module else [])])
            modules = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            if module.startswith(f"{PACKAGE}."):
                yield Path(*module.removeprefix(f"{PACKAGE}.").split(".")).with_suffix(".py")
