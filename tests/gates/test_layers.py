# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The rooms of the house, their floors, and who may import whom: never up, never sideways, never in a circle.

Imports inside functions, and those only for type checkers, count like any other.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept

# end -> room -> floor; a room may import rooms on lower floors, and itself.
FLOORS = {
    "plugin_utils": {
        "report": 6,
        "publish": 6,
        "driver": 6,
        "leaks": 5,
        "fetch": 4,
        "export": 4,
        "columns": 4,
        "archive": 3,
        "views": 3,
        "symbols": 3,
        "readers": 3,
        "triage": 2,
        "model": 2,
        "base": 1,
    },
    "module_utils": {
        "session": 7,
        "tracing": 6,
        "agent": 5,
        "spool": 4,
        "unit": 4,
        "memory": 4,
        "runtimes": 3,
        "malloc": 3,
        "host": 2,
        "formats": 1,
    },
}
# part -> the parts that it may import besides itself. Of module_utils, code on the controller gets only SHARED.
MAY_IMPORT = {
    "modules": {"module_utils"},
    "module_utils": set[str](),
    "plugin_utils": {"module_utils"},
    "action": {"plugin_utils", "module_utils"},
    "filter": {"plugin_utils", "module_utils"},
    "doc_fragments": set[str](),
    "console": {"plugin_utils", "module_utils"},
    "fabfile.py": {"console", "plugin_utils", "module_utils"},
}
ON_THE_TARGET = {"modules", "module_utils"}
SHARED = "formats"
# An action shares its name with its module; each end has one root of its errors.
TWINS = {"action"}
ONE_PER_END = {"errors"}
SAYS_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}

COLLECTION = ("ansible_collections", "offheap", "profiler")
SOURCES = [path for path in kept() if path.suffix == ".py" and path.parts[0] in ("plugins", "console", "fabfile.py")]


def part_of(path: Path) -> str:
    return path.parts[1] if path.parts[0] == "plugins" else path.parts[0]


def room_of(path: Path) -> str:
    """The folder below plugin_utils or module_utils; for a file outside any room, its own name."""
    return path.parts[2]


def imported(path: Path, text: str) -> list[str]:
    """Absolute names that a file imports, with ``from package import name`` as package.name."""
    package = [*COLLECTION, *path.parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def ours(path: Path, text: str) -> list[Path]:
    """Files or folders of the collection that a file imports, without their suffix."""
    names = [name.split(".") for name in imported(path, text)]
    return [Path(*name[len(COLLECTION) :]) for name in names if tuple(name[: len(COLLECTION)]) == COLLECTION]


def arrows(tree: Mapping[Path, str]) -> dict[Path, set[Path]]:
    """Which files of a tree (path -> text) each file imports; a name may be a file or something inside one."""
    found = {}
    for path, text in tree.items():
        targets = {one.with_suffix(".py") for name in ours(path, text) for one in (name, name.parent)}
        found[path] = targets & tree.keys()
    return found


def forbidden(path: Path, text: str) -> list[str]:
    """What a file imports but must not, each with the reason."""
    part = part_of(path)
    if part not in MAY_IMPORT:
        return [f"plugins/{part} has no place in the house"]
    if part in FLOORS and room_of(path) not in FLOORS[part]:
        return [f"{room_of(path)} is not a room of {part}"]
    found = []
    for target in dict.fromkeys(ours(path, text)):
        other = part_of(target) if target.parts[0] != "fabfile" else "fabfile.py"
        room = target.parts[2] if other in FLOORS and len(target.parts) > 2 else ""
        if other != part and other not in MAY_IMPORT[part]:
            found.append(f"{target}: {part} may not import {other}")
        elif other in FLOORS and room not in FLOORS[other]:
            found.append(f"{target}: {room or 'that'} is not a room of {other}")
        elif other == "module_utils" and part not in ON_THE_TARGET and room != SHARED:
            found.append(f"{target}: the controller may import only {SHARED} of module_utils")
        elif other == part and part in FLOORS and room != room_of(path):
            above, here = FLOORS[part][room], FLOORS[part][room_of(path)]
            if above >= here:
                found.append(f"{target}: on floor {above}, and {room_of(path)} is on {here}")
    return found


def circle(tree: Mapping[Path, str]) -> list[Path]:
    """The first circle of files that import each other; empty if there is none."""
    try:
        TopologicalSorter(arrows(tree)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def shared_names(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Names that several files share, with these files."""
    named = [path for path in paths if part_of(path) not in TWINS and path.stem != "__init__"]
    counts = Counter(path.stem for path in named)
    found: dict[str, list[str]] = {}
    for path in named:
        most = len(FLOORS) if path.stem in ONE_PER_END else 1
        if counts[path.stem] > most:
            found.setdefault(path.stem, []).append(str(path))
    return found


def text_of(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_file_imports_only_what_is_below_it(path: Path) -> None:
    assert forbidden(path, text_of(path)) == []


def test_no_circle_between_files() -> None:
    assert circle({path: text_of(path) for path in SOURCES}) == []


def test_a_name_is_unique_in_the_house() -> None:
    assert shared_names(SOURCES) == {}


@pytest.mark.parametrize("path", [path for path in SOURCES if part_of(path) == "plugin_utils"], ids=str)
def test_the_analysis_knows_nothing_of_ansible(path: Path) -> None:
    assert [name for name in imported(path, text_of(path)) if name.split(".")[0] == "ansible"] == []


@pytest.mark.parametrize("path", [path for path in SOURCES if part_of(path) in ON_THE_TARGET], ids=str)
def test_what_runs_on_a_target_needs_the_standard_library_only(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"ansible", "ansible_collections"}
    names = imported(path, text_of(path))
    assert [name for name in names if name.split(".")[0] not in allowed] == []
    not_sent = [name for name in names if re.match(r"ansible\.(?!module_utils\b)", name)]
    assert not_sent == [], "only ansible.module_utils is sent to a target"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_one_file_one_idea(path: Path) -> None:
    assert SAYS_NOTHING.isdisjoint([*path.parts[:-1], path.stem]), "a name must say what a thing is"
    assert len(text_of(path).splitlines()) <= 450, "about 400 lines a file"


LEAKS = Path("plugins/plugin_utils/leaks/verdict.py")
SPOOL = Path("plugins/module_utils/spool/dump.py")


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        (LEAKS, "from ..model.series import Series\nfrom .trend import Trend\nimport os", ""),
        (LEAKS, "from ...module_utils.formats import limits", ""),
        (LEAKS, "from ..report import page", "on floor 6, and leaks is on 5"),
        (LEAKS, "def late():\n    from .. import report", "on floor 6"),
        (LEAKS, "if TYPE_CHECKING:\n    from ..driver.sources import Source", "on floor 6"),
        (Path("plugins/plugin_utils/views/table.py"), "from ..readers import heap_v2", "on floor 3"),
        (LEAKS, "from ..attic import box", "attic is not a room"),
        (LEAKS, "from ...module_utils.spool import dump", "only formats of module_utils"),
        (LEAKS, "from ...action import leak_report", "may not import action"),
        (LEAKS, "import ansible_collections.offheap.profiler.plugins.plugin_utils.report.page", "on floor 6"),
        (Path("plugins/plugin_utils/attic/box.py"), "", "attic is not a room of plugin_utils"),
        (Path("plugins/plugin_utils/box.py"), "", "box.py is not a room of plugin_utils"),
        (Path("plugins/callback/box.py"), "", "has no place"),
        (SPOOL, "from ..host import procfs", ""),
        (SPOOL, "from ..unit import service", "on floor 4, and spool is on 4"),
        (SPOOL, "from ...plugin_utils.base import byte_size", "may not import plugin_utils"),
        (Path("plugins/modules/heap_fetch.py"), "from ..module_utils.session import fetch", ""),
        (Path("plugins/action/heap_fetch.py"), "from ..module_utils.session import fetch", "formats of module_utils"),
        (Path("plugins/filter/lg_bytes.py"), "from ..module_utils.host import procfs", "formats of module_utils"),
        (Path("console/target.py"), "from ..plugins.module_utils.host import procfs", "formats of module_utils"),
        (Path("fabfile.py"), "from .plugins.module_utils.host import procfs", "formats of module_utils"),
        (Path("console/target.py"), "from ..fabfile import fetch", "may not import fabfile.py"),
    ],
)
def test_the_gate_sees_a_wrong_import(path: Path, text: str, reason: str) -> None:
    found = forbidden(path, text)
    assert len(found) == bool(reason)
    assert reason in "".join(found)


def test_the_gate_sees_circles_and_shared_names() -> None:
    room = LEAKS.parent
    straight = {room / "a.py": "from . import b", room / "b.py": "from .c import see", room / "c.py": "see = 1"}
    assert circle(straight) == []
    assert set(circle({**straight, room / "c.py": "def late():\n    from .a import b"})) == set(straight)
    assert shared_names([LEAKS, SPOOL, Path("plugins/action/verdict.py")]) == {}
    assert set(shared_names([LEAKS, SPOOL.with_name("verdict.py")])) == {"verdict"}
    root = Path("plugins/module_utils/formats/errors.py")
    assert shared_names([root, Path("plugins/plugin_utils/base/errors.py")]) == {}
    assert "errors" in shared_names([root, Path("plugins/plugin_utils/base/errors.py"), LEAKS.with_name("errors.py")])
