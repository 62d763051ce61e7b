# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An action takes the options that its module documents."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import yaml

PLUGINS = "ansible_collections.offheap.profiler.plugins"
ACTIONS = """
    archive_prune archive_sync heap_analyze heap_compare heap_fetch heap_import leak_assert leak_push leak_report
    triage_report
""".split()
SHARED = ("type", "elements", "required", "default", "choices")
#: what an action passes to its own other half
INTERNAL = {"heap_fetch": {"step", "request"}}


def documented(name: str) -> dict[str, Any]:
    """The options of a module, including those of its fragments."""
    documentation = yaml.safe_load(importlib.import_module(f"{PLUGINS}.modules.{name}").DOCUMENTATION)
    options = dict(documentation["options"])
    for fragment in documentation["extends_documentation_fragment"]:
        file, _dot, part = fragment.removeprefix("offheap.profiler.").partition(".")
        found = importlib.import_module(f"{PLUGINS}.doc_fragments.{file}").ModuleDocFragment
        options |= yaml.safe_load(getattr(found, part.upper() or "DOCUMENTATION"))["options"]
    return options


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_has_the_documented_options(name: str) -> None:
    arguments = importlib.import_module(f"{PLUGINS}.action.{name}")._ARGUMENTS
    options = documented(name)
    for internal in INTERNAL.get(name, ()):
        assert options.pop(internal)["description"].startswith("Internal.")
    assert set(arguments) == set(options)
    for option, described in options.items():
        wanted = {key: described[key] for key in SHARED if key in described}
        assert {key: value for key, value in arguments[option].items() if key != "no_log"} == wanted
