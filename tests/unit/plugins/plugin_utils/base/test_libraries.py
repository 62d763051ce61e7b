# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import libraries
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.libraries import MissingLibraryError

_ROOT = Path(libraries.__file__).parents[3]
# Each comes with ansible-core.
_WITH_ANSIBLE = {"Jinja2", "PyYAML"}
# What options ask for: a cluster, whose scheduler and workers need it as well, and a collector that wants gRPC.
_ON_REQUEST = {"distributed", "grpcio"}

_IMPORT_ALL = """
import importlib, sys
for library in {libraries!r}:
    sys.modules[library] = None
for module in {modules!r}:
    importlib.import_module(module)
"""


def _modules() -> list[str]:
    here = _ROOT.parents[2]
    return [
        ".".join(path.relative_to(here).with_suffix("").parts)
        for room in ("plugin_utils", "action", "filter")
        for path in sorted((_ROOT / "plugins" / room).rglob("*.py"))
        if path.name != "__init__.py"
    ]


def test_all_that_are_missing_are_named_at_once_and_one_command_installs_what_the_next_step_needs_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("google.protobuf", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibraryError) as raised:
        libraries.require("numpy", "pyarrow", "pyarrow.parquet", "google.protobuf")
    said = str(raised.value)
    assert "missing on the controller: pyarrow protobuf. " in said
    assert said.endswith(f"{sys.executable} -m pip install -r {_ROOT}/meta/ee-requirements.txt")


def test_what_the_requirements_do_not_have_is_named_in_the_command() -> None:
    assert str(MissingLibraryError(["distributed"])).endswith("-m pip install distributed")
    assert str(MissingLibraryError(["numpy", "jinja2"])).endswith("/meta/ee-requirements.txt Jinja2")


def test_without_the_requirements_the_command_names_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_REQUIREMENTS", Path("nowhere"))
    assert str(MissingLibraryError(["numpy", "zstandard"])).endswith("-m pip install numpy zstandard")


def test_what_is_there_is_no_error() -> None:
    libraries.require(*libraries.PACKAGES)
    assert libraries.optional("numpy").ndarray is sys.modules["numpy"].ndarray


def test_a_library_is_imported_when_it_is_used() -> None:
    program = f"import sys; import {_modules()[0].split('.plugins.')[0]}.plugins.plugin_utils.driver.sources as used\n"
    program += "before = 'numpy' in sys.modules; used.located_bytes.np.zeros(1); print(before, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT.parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False True\n"


def test_a_missing_library_is_told_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    missing = libraries.optional("zstandard")
    with pytest.raises(MissingLibraryError, match="missing on the controller: zstandard"):
        missing.ZstdDecompressor()


def test_every_module_is_importable_without_any_of_them() -> None:
    absent = [name for name in libraries.PACKAGES if name not in ("jinja2", "yaml")]  # ansible-core itself needs them
    program = _IMPORT_ALL.format(libraries=absent, modules=_modules())
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT.parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_table_has_what_is_used_and_the_requirements_have_the_table() -> None:
    used = {
        name
        for path in (_ROOT / "plugins").rglob("*.py")
        for name in re.findall(r'libraries\.optional\("([^"]+)"\)', path.read_text())
    }
    assert used <= set(libraries.PACKAGES)
    required = {
        re.split("[>=]=", line)[0]
        for line in (_ROOT / "meta" / "ee-requirements.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    # Nothing imports the compiler.
    assert set(libraries.PACKAGES.values()) - _WITH_ANSIBLE - _ON_REQUEST == required - {"ziglang"}
