# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which part of the collection may import which: modules -> module_utils, action -> plugin_utils, never up."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.gates.files import ROOT, kept

OURS = "ansible_collections.offheap.profiler.plugins."
# layer -> what of the collection it may import. plugin_utils may use module_utils for formats that both ends share.
MAY_IMPORT = {
    "modules": {"module_utils"},
    "module_utils": {"module_utils"},
    "plugin_utils": {"plugin_utils", "module_utils"},
    "action": {"plugin_utils", "module_utils"},
    "filter": {"plugin_utils", "module_utils"},
    "doc_fragments": set[str](),
}
SOURCES = [path for path in kept() if path.suffix == ".py" and path.parts[0] == "plugins"]


def imported(path: Path) -> list[str]:
    """Absolute names that a file imports, with `from package import name` as package.name."""
    package = ["ansible_collections", "offheap", "profiler", *path.parts[:-1]]
    found = []
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_layer_imports_only_what_is_below_it(path: Path) -> None:
    layer = path.parts[1]
    assert layer in MAY_IMPORT, f"plugins/{layer} has no place in the order of layers"
    used = {name[len(OURS) :].split(".")[0] for name in imported(path) if name.startswith(OURS)}
    assert used - MAY_IMPORT[layer] == set()


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[1] == "plugin_utils"], ids=str)
def test_the_analysis_knows_nothing_of_ansible(path: Path) -> None:
    assert [name for name in imported(path) if name.split(".")[0] == "ansible"] == []


@pytest.mark.parametrize("path", [path for path in SOURCES if path.parts[1] in ("modules", "module_utils")], ids=str)
def test_what_runs_on_a_target_needs_the_standard_library_only(path: Path) -> None:
    allowed = sys.stdlib_module_names | {"ansible", "ansible_collections"}
    foreign = [name for name in imported(path) if name.split(".")[0] not in allowed]
    assert foreign == []
    not_sent = [name for name in imported(path) if re.match(r"ansible\.(?!module_utils\b)", name)]
    assert not_sent == [], "only ansible.module_utils travels to a target"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_one_file_one_idea(path: Path) -> None:
    assert path.name not in {"utils.py", "common.py", "helpers.py"}, "a name says what a thing is"
    assert len((ROOT / path).read_text().splitlines()) <= 450, "about 400 lines a file"
