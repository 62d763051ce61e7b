# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An action takes the options that its module documents."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import options

PLUGINS = "ansible_collections.offheap.profiler.plugins"
ACTIONS = """
    archive_prune archive_sync finished_build heap_analyze heap_compare heap_fetch heap_import installed_tracer
    lake_update leak_assert leak_push leak_report rollout_canary triage_report
""".split()
SHARED = ("type", "elements", "required", "default", "choices")
#: types of our own, whose errors are plainer
TYPES = {options.size: "bytes", options.whole_number: "int"}
#: what an action passes to its own other half
INTERNAL = {"heap_fetch": {"step", "request"}}


def documented(name: str) -> dict[str, Any]:
    """The options of a module, including those of its fragments."""
    documentation = yaml.safe_load(importlib.import_module(f"{PLUGINS}.modules.{name}").DOCUMENTATION)
    found = dict(documentation["options"])
    for fragment in documentation["extends_documentation_fragment"]:
        file, _dot, part = fragment.removeprefix("offheap.profiler.").partition(".")
        fragments = importlib.import_module(f"{PLUGINS}.doc_fragments.{file}").ModuleDocFragment
        found |= yaml.safe_load(getattr(fragments, part.upper() or "DOCUMENTATION"))["options"]
    return found


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_has_the_documented_options(name: str) -> None:
    arguments = importlib.import_module(f"{PLUGINS}.action.{name}")._ARGUMENTS
    found = documented(name)
    for internal in INTERNAL.get(name, ()):
        assert found.pop(internal)["description"].startswith("Internal.")
    assert set(arguments) == set(found)
    for option, described in found.items():
        wanted = {key: described[key] for key in SHARED if key in described}
        taken = {key: value for key, value in arguments[option].items() if key != "no_log"}
        taken["type"] = TYPES.get(taken["type"], taken["type"])
        assert taken == wanted
