# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.base.directory_name import directory_name
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.errors import ControllerError


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("app1.example.org", "app1.example.org"),
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80%3A%3A1%25eth0"),
        ("..", "%2E."),
        (".", "%2E"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("a/b", "a%2Fb"),
        ("ä b", "%C3%A4%20b"),
        ("app@1.service", "app%401.service"),
        ("\0\n", "%00%0A"),
    ],
)
def test_names_of_directories(name: str, directory: str) -> None:
    assert directory_name(name) == directory


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_every_name_is_one_directory(first: str, second: str) -> None:
    names = set()
    for text in (first, second):
        try:
            name = directory_name(text)
        except ControllerError:
            return
        assert name.isascii() and "/" not in name and not name.startswith(".") and len(name) <= 255
        names.add(name)
    printable = all(character < "\ud800" or character > "\udfff" for character in first + second)
    assert len(names) == 2 or first == second or not printable


@pytest.mark.parametrize("name", ["", "x" * 300, "ä" * 100])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ControllerError, match="empty or too long"):
        directory_name(name)
