# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Samples in columns against the same samples as the protobuf library reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import sample_columns
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.protobuf_pieces import pieces_apart
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.sample_columns import SampleColumns

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


# Fields of a sample as writers write them: packed, one by one, a label; and what no writer of today writes.
PACKED = st.builds(
    lambda number, values: field(number, b"".join(map(varint, values))),
    st.sampled_from([1, 2]),
    st.lists(NUMBERS, max_size=9),
)
SINGLE = st.builds(lambda number, value: varint(number << 3) + varint(value), st.sampled_from([1, 2]), NUMBERS)
LABEL = st.builds(lambda key, value: field(3, b"\x08" + varint(key) + b"\x18" + varint(value)), NUMBERS, NUMBERS)
STRANGE = st.sampled_from([b"\x21" + b"\xff" * 8, field(9, b"\xff\xff"), b"\x8a\x00\x01\x05", b"\x08\x85\x80\x00"])
SAMPLES = st.lists(st.lists(st.one_of(PACKED, SINGLE, LABEL, STRANGE), max_size=5).map(b"".join), max_size=6)


def rows(columns: list[SampleColumns]) -> list[tuple[list[int], list[int]]]:
    found = []
    for one in columns:
        locations = np.split(one.locations, np.cumsum(one.lengths)[:-1])
        values = np.split(one.values, np.cumsum(one.widths)[:-1])
        found += [(own.tolist(), counted.tolist()) for own, counted in zip(locations, values, strict=True)][
            : len(one.lengths)
        ]
    return sorted(found)


def read(data: bytes) -> tuple[list[tuple[list[int], list[int]]], list[bytes]]:
    """The samples of a profile, and its other fields."""
    columns, others = [], []
    for begins, ends, rest in pieces_apart(data, 0x12, 15):
        columns += sample_columns.decoded(data, begins, ends)
        others.append(rest)
    return rows(columns), others


@given(SAMPLES, st.sampled_from([b"", b"\x32\x03abc", b"\x32\x02\xff\xff"]))
@example([field(1, b"\x01\x02") + field(2, b"\x05")] * 3 + [b"\x08\x01" * 40 + b"\x10\x07"], b"\x32\x00")
@example([b"", field(2, varint((1 << 64) - 5))], b"")
def test_samples_are_as_the_library_reads_them(samples: list[bytes], between: bytes) -> None:
    data = between.join(field(2, sample) for sample in samples) + between
    made = profile_proto.profile_class("bytes").FromString(data)
    found, others = read(data)
    assert found == sorted((list(sample.location_id), list(sample.value)) for sample in made.sample)
    texts = profile_proto.profile_class("bytes").FromString(b"".join(others))
    assert not texts.sample and texts.string_table == made.string_table


@given(SAMPLES, st.data())
def test_a_cut_sample_is_refused_as_by_the_library(samples: list[bytes], chosen: Any) -> None:
    samples = [sample[: chosen.draw(st.integers(0, len(sample)))] for sample in samples]
    data = b"".join(field(2, sample) for sample in samples)
    try:
        made = profile_proto.profile_class("bytes").FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            read(data)
    else:
        assert read(data)[0] == sorted((list(one.location_id), list(one.value)) for one in made.sample)


def test_what_writers_write_needs_no_object_for_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go's runtime packs from three numbers on; labels are skipped."""
    monkeypatch.setattr(profile_proto, "message_class", None)
    one = b"\x08\x01\x08\x02" + field(2, b"\x01\x02\x03\x04") + field(3, b"\x08\x05\x18\x06")
    other = field(1, b"\x01\x02\xff\x7f") + b"\x10\x01\x10\x02"
    found, _others = read(b"".join(field(2, sample) for sample in [one, other] * 50))
    assert found == sorted([([1, 2], [1, 2, 3, 4]), ([1, 2, 16383], [1, 2])] * 50)
