# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Requests to pack: what was written can be read, and anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import (
    DumpMember,
    Identity,
    ImageMember,
    MapMember,
    PackRequest,
    RequestError,
)

TEXT = st.text(max_size=20)
SIZE = st.integers(0, 1 << 40)
IDENTITY = st.builds(Identity, st.integers(0, (1 << 64) - 1), SIZE, SIZE)
REQUEST = st.builds(
    PackRequest,
    st.lists(st.builds(DumpMember, TEXT, TEXT, IDENTITY, TEXT), max_size=3),
    st.lists(st.builds(ImageMember, TEXT, TEXT, SIZE, st.lists(TEXT, max_size=3)), max_size=3),
    st.lists(st.builds(MapMember, TEXT, TEXT, TEXT, st.none() | IDENTITY, SIZE, TEXT), max_size=3),
    st.lists(st.builds(DumpMember, TEXT, TEXT, IDENTITY, TEXT), max_size=3),
)
WHOLE: dict[str, Any] = {
    "dumps": [{"member": "d", "unit": "a.service", "name": "n", "identity": [1, 2, 3]}],
    "images": [{"member": "i", "build_id": "ab", "size": 5, "sources": ["/x"]}],
    "maps": [{"member": "m", "unit": "a.service", "name": "n", "identity": None, "pid": 1, "key": "1-k"}],
    "holders": [{"member": "h", "unit": "a.service", "name": "n.holders", "identity": [1, 12, 3]}],
    "lives": [{"member": "l", "unit": "a.service", "name": "n.lives", "identity": [1, 11, 3]}],
}


@given(REQUEST)
def test_what_was_written_is_read(request: PackRequest) -> None:
    assert PackRequest.from_json(json.loads(json.dumps(request.to_json()))) == request


def test_the_size_is_what_is_known_before() -> None:
    beside = {**WHOLE["maps"][0], "identity": [1, 70, 3]}
    assert PackRequest.from_json({**WHOLE, "maps": [*WHOLE["maps"], beside]}).size == 2 + 5 + 70 + 11 + 12


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("dumps", {"identity": [1, 2]}),
        ("dumps", {"identity": [1, True, 3]}),
        ("dumps", {"unit": None}),
        ("dumps", {"name": "\ud800"}),
        ("images", {"size": -1}),
        ("images", {"sources": "/x"}),
        ("images", {"sources": [1]}),
        ("maps", {"pid": "1"}),
        ("maps", {"identity": 5}),
    ],
)
def test_what_is_no_request(part: str, change: dict[str, Any]) -> None:
    wrong = {**WHOLE, part: [{**WHOLE[part][0], **change}]}
    with pytest.raises(RequestError, match=next(iter(change))):
        PackRequest.from_json(wrong)
    for missing in WHOLE:
        with pytest.raises(RequestError, match=missing):
            PackRequest.from_json({name: value for name, value in WHOLE.items() if name != missing})
