# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from hypothesis import given

from ansible_collections.offheap.profiler.plugins.plugin_utils.export import folded
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.profile import Profile
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile, profiles


def test_stacks_are_written_from_the_root_on() -> None:
    found = profile({("inflate", "unzip", "main"): 50.4, ("a;b", "100%"): 7.0, (): 3.0, ("nothing",): 0.2})
    assert folded.render(found) == "100%25;a%3Bb 7\n[no stack] 3\nmain;unzip;inflate 50\n"


@given(profiles())
def test_every_line_reads_back(found: Profile) -> None:
    lines = folded.render(found).splitlines()
    total = 0
    for line in lines:
        stack, _space, size = line.rpartition(" ")
        total += int(size)
        frames = [name.replace("%3B", ";").replace("%25", "%") for name in stack.split(";")]
        assert any(frames == found.labels(indices)[::-1] for indices in found.stacks)
    assert abs(total - found.total_bytes) <= len(found.stacks)
