# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.model import samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Frame
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.report import threads

# Two workers of one name and one nameless thread, on two stacks; every allocation was recorded (interval 1).
DUMP = b"""heap_v2/1
  t*: 6: 600 [0: 0]
  t0: 3: 300 [0: 0] worker
  t1: 2: 200 [0: 0] worker
  t7: 1: 100 [0: 0]
@ 0x10 0x20
  t*: 5: 500 [0: 0]
  t0: 3: 300 [0: 0]
  t1: 2: 200 [0: 0]
@ 0x30 0x20
  t*: 1: 100 [0: 0]
  t7: 1: 100 [0: 0]

MAPPED_LIBRARIES:
"""


def _groups(text: bytes) -> list[threads.ThreadGroup]:
    located = samples.located(heap_v2.parse(text, "dump"), {})
    return threads.by_name(
        samples.named(located, lambda locations: [[Frame(f"f{place.address:x}", "app")] for place in locations])
    )


def test_threads_of_one_name_are_together_and_hold_their_own() -> None:
    workers, nameless = _groups(DUMP)
    assert (workers.name, workers.count, workers.bytes) == ("worker", 2, [500, 0])
    assert (nameless.name, nameless.count, nameless.bytes) == ("thread 7", 1, [0, 100])


@pytest.mark.parametrize("name", ["name", ""])
def test_many_threads_are_told_together(name: str) -> None:
    head = "".join(f"  t{n}: 1: {n + 1} [0: 0]{name and f' {name}{n}'}\n" for n in range(20))
    lines = "".join(f"  t{n}: 1: {n + 1} [0: 0]\n" for n in range(20))
    text = f"heap_v2/1\n  t*: 20: 210 [0: 0]\n{head}@ 0x10\n  t*: 20: 210 [0: 0]\n{lines}\nMAPPED_LIBRARIES:\n"
    found = _groups(text.encode())
    assert [(one.name, one.count) for one in found[:2]] == [("other threads", 8), (f"{name or 'thread '}19", 1)]
    assert sum(sum(one.bytes) for one in found) == 210


def test_a_dump_without_thread_lines_has_none() -> None:
    assert _groups(b"heap_v2/1\n  t*: 1: 5 [0: 0]\n@ 0x10\n  t*: 1: 5 [0: 0]\n\nMAPPED_LIBRARIES:\n") == []
