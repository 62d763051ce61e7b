# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.model import frame_table
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame, Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame_table import FrameTableError

_TEXTS = st.sampled_from(["", "main", "libz.so", "a;b"])
_FRAMES = st.builds(Frame, _TEXTS, _TEXTS, st.sampled_from(Kind), st.integers(0, 2), _TEXTS, st.integers(0, 2), _TEXTS)


@given(st.lists(st.lists(_FRAMES, max_size=3).map(tuple), max_size=5))
def test_what_is_packed_comes_back(places: list[tuple[Frame, ...]]) -> None:
    assert frame_table.unpacked(json.loads(json.dumps(frame_table.packed(places)))) == places


_PARTS: list[list[Any]] = [["main", "work"], ["app"], ["native"], [0], [""], [0], [""]]


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {"frames": _PARTS},
        {"frames": _PARTS[:6], "at": []},
        {"frames": [*_PARTS[:5], ["0"], [""]], "at": []},
        {"frames": [*_PARTS[:2], ["nothing"], *_PARTS[3:]], "at": []},
        {"frames": [["main", "work"], ["a", "b", "c"], *_PARTS[2:]], "at": []},
        {"frames": [[], *_PARTS[1:]], "at": []},
        {"frames": _PARTS, "at": [[2]]},
        {"frames": _PARTS, "at": [[-1]]},
        {"frames": _PARTS, "at": [["0"]]},
        {"frames": _PARTS, "at": 1},
    ],
)
def test_what_is_no_table_is_refused(told: Any) -> None:
    with pytest.raises(FrameTableError, match="not a table of frames"):
        frame_table.unpacked(told)
