# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A role's defaults and its argument_specs name the same variables, all prefixed with the role's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.gates.files import ROOT

ROLES = sorted(path for path in (ROOT / "roles").glob("*") if path.is_dir())


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def entry_points(role: Path) -> dict[str, Any]:
    specs = load(role / "meta" / "argument_specs.yml")
    assert specs, f"{role.name} has no meta/argument_specs.yml"
    found: dict[str, Any] = specs["argument_specs"]
    return found


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_and_argument_specs_have_the_same_names(role: Path) -> None:
    specified: set[str] = set()
    required: set[str] = set()
    for entry in entry_points(role).values():
        options = entry.get("options") or {}
        specified |= set(options)
        required |= {name for name, option in options.items() if option.get("required")}
    defaults = set(load(role / "defaults" / "main.yml") or {})
    assert defaults - specified == set(), "in defaults only"
    assert specified - required - defaults == set(), "in argument_specs only, and not required"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_default_is_the_same_in_both(role: Path) -> None:
    defaults = load(role / "defaults" / "main.yml") or {}
    differing = {}
    for entry in entry_points(role).values():
        for name, option in (entry.get("options") or {}).items():
            if "default" in option and name in defaults and option["default"] != defaults[name]:
                differing[name] = (option["default"], defaults[name])
    assert differing == {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_role_says_what_it_is(role: Path) -> None:
    assert (role / "README.md").is_file(), "galaxy-importer refuses a role without README.md"
    for name, entry in entry_points(role).items():
        assert entry.get("short_description"), f"entry point {name} has no short_description"
