# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which unit tests a change touches."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible_collections.offheap.profiler.tests.gates import touched
from ansible_collections.offheap.profiler.tests.gates.files import ROOT

ROOMS = Path("plugins", "plugin_utils")
TESTS = Path("tests", "unit", "plugins", "plugin_utils")


def test_a_room_s_own_tests_and_those_that_import_what_changed() -> None:
    found = touched.unit_tests(ROOT, [ROOMS / "base" / "byte_size.py"])
    assert TESTS / "base" / "test_child.py" in found, "of the room, though it imports something else"
    assert TESTS / "report" / "test_fleet.py" in found, "by way of others"
    assert Path("tests/unit/plugins/module_utils/formats/test_elf.py") not in found


def test_a_module_that_imports_by_a_dotted_way_is_found() -> None:
    """As the rooms do: ``from ..base import x`` and ``from ...module_utils.formats import x``."""
    found = touched.unit_tests(ROOT, [Path("plugins/module_utils/formats/dump_name.py")])
    assert TESTS / "fetch" / "test_ingest.py" in found


def test_a_document_touches_no_unit_test() -> None:
    assert touched.unit_tests(ROOT, [Path("README.md"), Path("docs/live.md")]) == []


def test_a_change_is_what_is_new_and_what_is_committed_since_origin(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=clone, check=True, capture_output=True)

    origin, clone = tmp_path / "origin", tmp_path / "a clone"
    subprocess.run(["git", "init", "-q", "--bare", origin], check=True)
    subprocess.run(["git", "clone", "-q", origin, clone], check=True, capture_output=True)
    for name in ("old", "changed", "committed"):
        (clone / name).write_text(name)
    git("add", "old", "changed")
    git("commit", "-m", "first")
    git("push", "origin", "HEAD:main")
    git("fetch")
    git("add", "committed")
    git("commit", "-m", "second")
    (clone / "changed").write_text("otherwise")
    (clone / "nobody knows it").write_text("yet")
    assert touched.changed_files(clone) == [Path("changed"), Path("committed"), Path("nobody knows it")]
