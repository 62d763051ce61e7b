# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import byte_size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (62_914_560, "60.0 MiB"),
        (-62_914_560, "-60.0 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (0.4, "0 B"),
        (1024**7, "1024.0 EiB"),
        (math.inf, "unknown"),
    ],
)
def test_a_size_as_text(size: float, text: str) -> None:
    assert byte_size.as_text(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        (4096, 4096),
        ("512 KiB", 524_288),
        ("512k", 524_288),
        ("512KB", 524_288),
        (" 1 g ", 1024**3),
        ("12 B", 12),
    ],
)
def test_a_size_from_text(text: str, size: int) -> None:
    assert byte_size.parse(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5 MiB", "1 X", "1 MiBB", "0x10", True, "9" * 40, "1\n2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(byte_size.ByteSizeError, match="not a size: expected bytes"):
        byte_size.parse(text)


def test_lg() -> None:
    assert byte_size.lg("512 KiB") == 19
    assert byte_size.lg(1) == 0


@pytest.mark.parametrize("size", [0, 3, "3 KiB"])
def test_lg_of_no_power_of_two_names_the_neighbours(size: int | str) -> None:
    with pytest.raises(byte_size.ByteSizeError, match="not a power of two"):
        byte_size.lg(size)
    with pytest.raises(byte_size.ByteSizeError, match=r"2\.0 KiB and 4\.0 KiB"):
        byte_size.lg("3 KiB")


@given(st.integers(0, 59))
def test_lg_inverts_the_power(exponent: int) -> None:
    assert byte_size.lg(2**exponent) == exponent


@given(st.integers(0, 2**60))
def test_text_is_within_a_twentieth_of_a_unit(size: int) -> None:
    number, unit = byte_size.as_text(size).split()
    factor = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert abs(float(number) * factor - size) <= 0.051 * factor
    assert float(number) < 1024 or unit == "EiB"
