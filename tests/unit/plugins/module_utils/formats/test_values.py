# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Untrusted values: only valid ones pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import values


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 1 << 62, -(1 << 62), [1]])
def test_what_is_no_whole_number(value: Any) -> None:
    assert not values.is_whole(value) and not values.is_size(value)


@pytest.mark.parametrize("value", [True, float("nan"), float("inf"), "1", None])
def test_what_is_no_number(value: Any) -> None:
    assert not values.is_number(value)


@pytest.mark.parametrize("value", [b"a", None, 1, "\ud800", "\udcff", "aaaa"])
def test_what_is_no_text(value: Any) -> None:
    assert not values.is_text(value, 3)


@given(st.text(), st.integers(0, (1 << 62) - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_what_passes_can_be_written(text: str, size: int, number: float) -> None:
    assert values.is_text(text, len(text)) and values.is_size(size) and values.is_number(number)
    json.dumps([text, size, number], allow_nan=False, ensure_ascii=False).encode("utf-8")


def test_text_that_is_no_utf_8() -> None:
    assert values.clean("a\udcffb", 10) == "a\ufffdb"
    assert values.clean("ä" * 10, 5) == "ää\ufffd"
