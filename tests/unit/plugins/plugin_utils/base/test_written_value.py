# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What somebody types for a list or a mapping is what was meant, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.filter import as_list, as_mapping

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.@-]{0,20}", fullmatch=True)
VALUES = st.one_of(NAMES, st.integers(-5, 99), st.booleans(), st.dictionaries(NAMES, NAMES, max_size=3))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("", []),
        (" \n", []),
        (None, []),
        ("frontend", ["frontend"]),
        ("frontend\r\n  orders\n\n", ["frontend", "orders"]),
        ("frontend, orders,worker", ["frontend", "orders", "worker"]),
        ("no\n1", ["no", "1"]),
        ("--enable-prof --disable-doc", ["--enable-prof", "--disable-doc"]),
        ("- frontend\n- name: orders\n  mode: own\n", ["frontend", {"name": "orders", "mode": "own"}]),
        ('["frontend", "orders"]', ["frontend", "orders"]),
        ({"name": "orders"}, [{"name": "orders"}]),
        (("a", "b c"), ["a", "b c"]),
        (7, [7]),
    ],
)
def test_lists(typed: Any, meant: list[Any]) -> None:
    assert as_list.as_list(typed) == meant


@given(st.lists(VALUES, max_size=5))
def test_a_list_in_any_notation(value: list[Any]) -> None:
    assert as_list.as_list(value) == value
    assert as_list.as_list(json.dumps(value)) == value
    assert as_list.as_list(yaml.safe_dump(value, default_flow_style=False)) == value


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_a_mapping_in_any_notation(value: dict[str, Any]) -> None:
    assert as_mapping.as_mapping(value) == value
    assert as_mapping.as_mapping(json.dumps(value)) == value
    assert as_mapping.as_mapping(yaml.safe_dump(value, default_flow_style=False)) == value


def test_mappings_in_words() -> None:
    assert as_mapping.as_mapping("lg_prof_sample=16, prof_active=true\ndirty=") == {
        "lg_prof_sample": "16",
        "prof_active": "true",
        "dirty": "",
    }
    assert as_mapping.as_mapping("") == as_mapping.as_mapping(None) == {}


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("[a", "is no YAML"),
        ("lg_prof_sample", "is no mapping: write lines"),
        ("a: b: c", "is no YAML"),
        ("a: 2026-13-45", "is no YAML"),
    ],
)
def test_what_is_no_mapping(typed: str, why: str) -> None:
    with pytest.raises(AnsibleFilterError, match=why):
        as_mapping.as_mapping(typed)


def test_what_is_no_list() -> None:
    with pytest.raises(AnsibleFilterError, match=r"as_list: .* is no YAML"):
        as_list.as_list("[a")
