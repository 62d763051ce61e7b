# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Names of services: systemd's grammar, minus names that are unsafe as a directory or an argument."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name

CHARACTERS = "abzAZ09:_.\\@-"
BAD = [
    "",
    ".",
    "..",
    "-x",
    ".hidden",
    "@x",
    "foo@",
    "a/b",
    "a b",
    "a\n",
    "a\0",
    "ü",
    "x" * 246,
    "a%b",
    "a,b",
    "../x",
    "ä",
    ".service",
]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("frontend", "frontend.service"),
        ("frontend.service", "frontend.service"),
        ("app@one", "app@one.service"),
        ("app@one@two", "app@one@two.service"),
        ("a.b", "a.b.service"),
        ("foo.socket.service", "foo.socket.service"),
        (r"f-my\x20svc.service", r"f-my\x20svc.service"),
        (r"\x2dmy", r"\x2dmy.service"),
        ("postgresql@15-main.service", "postgresql@15-main.service"),
        ("a:b_c-d", "a:b_c-d.service"),
        ("x" * 245, "x" * 245 + ".service"),
    ],
)
def test_names_of_services(name: str, full: str) -> None:
    assert unit_name.service(name) == full
    assert unit_name.is_service(full)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("suffix", ["", ".service"])
def test_what_is_no_name_of_a_service(name: str, suffix: str) -> None:
    with pytest.raises(unit_name.UnitNameError):
        unit_name.service(name + suffix)
    assert not unit_name.is_service(name + suffix)


@pytest.mark.parametrize("kind", ["socket", "timer", "slice"])
def test_another_kind_of_unit(kind: str) -> None:
    with pytest.raises(unit_name.UnitNameError, match="not the name of a service unit"):
        unit_name.service(f"foo.{kind}")


def test_a_template_says_how_to_name_an_instance() -> None:
    with pytest.raises(unit_name.UnitNameError, match=r"such as app@main\.service"):
        unit_name.service("app@")


@pytest.mark.parametrize("value", [None, 1, b"a.service", ["a.service"]])
def test_what_is_no_text(value: object) -> None:
    assert not unit_name.is_service(value)


@given(st.text(CHARACTERS, max_size=30) | st.text(max_size=300))
@example("a.service\n")
def test_a_name_is_full_or_becomes_so_or_is_refused(name: str) -> None:
    try:
        full = unit_name.service(name)
    except unit_name.UnitNameError:
        assert not unit_name.is_service(name)
        return
    assert full in (name, name + ".service")
    assert unit_name.is_service(full) and unit_name.service(full) == full
    assert os.path.basename(full) == full and full[0] not in ".-" and full.isascii() and full.isprintable()
    assert len(full + ".d") <= 255
