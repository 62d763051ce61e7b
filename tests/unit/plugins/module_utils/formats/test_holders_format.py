# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the agent says of holders, and whatever else may lie in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats import holders
from ansible_collections.offheap.profiler.plugins.module_utils.formats.holders import HoldersError, Node, Place


def told() -> dict[str, Any]:
    """A look as the agent writes it: of one stack, three samples are held by a table, and one is lost."""
    return {
        "format": 1,
        "dump": "jeprof.12.0.m0.heap",
        "time": 1700000000.5,
        "duration": 0.36,
        "in_time": True,
        "room": True,
        "blocks_known": True,
        "read": 4096,
        "swapped": 0,
        "failed": 0,
        "reached": 7,
        "sizes": [[32, 12, 7], [96, 60, 0]],
        "threads": 2,
        "files": ["/usr/bin/app", "/lib/libc.so.6"],
        "nodes": [
            {"kind": "global", "file": 0, "at": 0x9380},
            {"kind": "block", "parent": 0, "size": 40960, "many": False},
            {"kind": "block", "parent": 1, "size": 32, "many": True, "file": 0, "at": 0x8000},
            {"kind": "stack", "thread": 17, "name": "worker-3"},
            {"kind": "mapped", "name": "", "start": 4096, "end": 8192},
        ],
        "stacks": [
            {
                "frames": [(1 << 64) - 1, 4096],
                "living": 6,
                "bytes": 600,
                "looked": 5,
                "lost": 1,
                "young": 1,
                "died": 0,
                "held": [[2, 3]],
                "held_otherwise": 1,
                "sizes": [96, 112],
                "types": [{"file": 0, "at": 32768, "samples": 5}],
            }
        ],
        "others": {"looked": 10, "lost": 0, "young": 0, "died": 2},
    }


def parsed(data: Any) -> holders.Holders:
    return holders.parse(json.dumps(data).encode())


def test_what_the_agent_writes_is_read() -> None:
    look = parsed(told())
    assert look.complete and look.blocks_known and look.others == (10, 0)
    assert look.nodes[0] == Node("global", place=Place("/usr/bin/app", 0x9380))
    assert look.nodes[2] == Node("block", 1, 32, True, Place("/usr/bin/app", 0x8000))
    assert look.nodes[3] == Node("stack", thread=17, name="worker-3")
    (stack,) = look.stacks
    assert stack.frames == ((1 << 64) - 1, 4096)
    assert (stack.looked, stack.lost, stack.held, stack.otherwise) == (5, 1, ((2, 3),), 1)
    assert stack.types == ((Place("/usr/bin/app", 32768), 5),)
    assert (look.sizes, stack.sizes) == (((32, 12, 7), (96, 60, 0)), (96, 112))


@pytest.mark.parametrize(("key", "value"), [("in_time", False), ("room", False), ("swapped", 4096), ("failed", 4096)])
def test_a_look_that_has_not_seen_everything_is_not_complete(key: str, value: object) -> None:
    assert not parsed({**told(), key: value}).complete


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("format",), 2),
        (("time",), float("nan")),
        (("duration",), -1),
        (("files",), ["/a"] * 2000),
        (("files", 0), 7),
        (("nodes", 1, "parent"), 1),  # its own
        (("nodes", 1, "parent"), 2),  # a circle
        (("nodes", 0, "kind"), "root"),
        (("nodes", 0, "file"), 2),
        (("nodes", 2, "size"), -1),
        (("nodes", 3, "name"), "\ud800"),
        (("nodes", 3, "name"), "x" * 5000),
        (("stacks", 0, "frames"), [1 << 64]),
        (("stacks", 0, "frames"), [True]),
        (("stacks", 0, "held"), [[5, 3]]),
        (("stacks", 0, "held"), [[2, 4]]),  # the sum is wrong
        (("stacks", 0, "held"), [[2]]),
        (("stacks", 0, "lost"), 2),
        (("stacks", 0, "types", 0, "samples"), "many"),
        (("stacks", 0, "sizes"), [96] * 17),
        (("stacks", 0, "sizes", 0), -1),
        (("sizes", 0), [32, 12]),
        (("sizes", 0, 2), "many"),
        (("others", "lost"), 11),
        (("others",), None),
    ],
)
def test_what_it_would_not_write_is_refused(where: tuple[Any, ...], value: object) -> None:
    data: Any = told()
    place = data
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(HoldersError, match=r"is invalid|not JSON"):
        parsed(data)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"format": 1}', b"9" * 2000])
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(HoldersError):
        holders.parse(text)


def test_a_way_that_has_no_end_is_refused() -> None:
    data = told()
    chain = [{"kind": "block", "parent": number, "size": 32, "many": False} for number in range(4, 60)]
    with pytest.raises(HoldersError, match="parent is invalid"):
        parsed({**data, "nodes": [*data["nodes"], *chain]})
    assert len(parsed({**data, "nodes": [*data["nodes"], *chain[:24]]}).nodes) == 29
