# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import (
    ASYNC_PROFILER,
    SamplingFacts,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import lives_columns
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.lives import BUCKETS
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives, small_recordings
from ansible_collections.offheap.profiler.tests.unit.strategies.leaky_archives import JIT, START, inside

BOOK = f"""\
offheap_lives/1 524288
{START:.3f} {START + 100:.3f}
2 200
@ {inside(b"inflate"):#x} {JIT + 64:#x}
5 20480 3
0 1 10 2 2 300
90000 4096 95000 4096
@ {inside(b"deflate"):#x} {JIT + 64:#x}
1 64 1
3 1 300

end 2 2
"""


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Two captures, the first with lives."""
    archive = Archive.create(tmp_path / "archive")
    archive.add_image(leaky_archives.image().build_id or "", "libz.so.1", leaky_archives.libz())
    for number in range(2):
        content = leaky_archives.dump_text(2, 1)
        (tmp_path / "dump").write_bytes(content)
        (tmp_path / "lives").write_text(BOOK)
        facts = leaky_archives.facts(content, "app1", number, START + 100 + number)
        archive.add_capture(facts, tmp_path / "dump", lives=tmp_path / "lives" if number == 0 else None)
    return archive


def test_lives_have_the_names_of_their_stacks(archive: Archive) -> None:
    captures = archive.captures()
    with reading(archive, pytest.fail) as reader:
        lives = reader.lives(captures, reader.maps(captures))
    assert lives is not None
    assert [[frame.group for frame in stack.frames] for stack in lives.stacks] == [
        ["inflate", "[jit]"],
        ["deflate", "[jit]"],
    ]
    assert (lives.began, lives.now, lives.lost) == (START, START + 100, 2)
    assert lives.births.tolist() == [5, 1]
    assert lives.deaths[:, :4].tolist() == [[1, 0, 2, 0], [0, 0, 0, 1]]
    assert lives.ages[:, :4].tolist() == [[0.01, 0, 0.3, 0], [0, 0, 0, 0.3]]
    assert lives.deaths.shape == (2, BUCKETS)
    assert (lives.stack.tolist(), lives.age.tolist(), lives.size.tolist()) == ([0, 0], [10, 5], [4096, 4096])
    assert lives.weight[0] == pytest.approx(524288, rel=0.01)
    assert (captures[0].path / lives_columns.NAME).exists(), "so the next reader need not parse it"


def test_lives_that_cannot_be_read_are_left_out_with_a_warning(archive: Archive) -> None:
    captures = archive.captures()
    beside = captures[0].lives
    assert beside is not None
    beside.write_bytes(b"offheap_lives/1 524288\nhostile\n")
    warnings: list[str] = []
    with reading(archive, warnings.append) as reader:
        assert reader.lives(captures, reader.maps(captures)) is None
    assert len(warnings) == 1 and "the lives of a process of frontend.service on app1 were left out" in warnings[0]


def test_a_process_without_lives_has_none(archive: Archive) -> None:
    captures = archive.captures()[1:]
    with reading(archive, pytest.fail) as reader:
        assert reader.lives(captures, reader.maps(captures)) is None


def test_lives_of_a_recording_are_its_allocations_and_frees(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path / "archive")
    tenth = 10**8  # of a second, in ticks
    content = small_recordings.recording(
        [
            (1 * tenth, 10, 40, 1),
            (3 * tenth, 10),
            (4 * tenth, 10, 5000, 1),
            (5 * tenth, 11, 40, 2),
            (6 * tenth, 11, 40, 2),  # the free before it was lost
        ]
    )
    (tmp_path / "dump").write_bytes(content)
    facts = leaky_archives.facts(content, "app1", 0, START)
    sampling = SamplingFacts("systematic", 1000)
    archive.add_capture(replace(facts, source=ASYNC_PROFILER, sampling=sampling), tmp_path / "dump")
    captures = archive.captures()
    with reading(archive, pytest.fail) as reader:
        lives = reader.lives(captures, reader.maps(captures))
    assert lives is not None
    assert [stack.frames[0].group for stack in lives.stacks] == ["serve", "java.util.zip.Deflater.init"]
    assert (lives.began, lives.now, lives.lost) == (1e9, 1e9 + 1, 1)
    assert lives.births.tolist() == [2, 1]
    assert lives.deaths[:, :4].tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert lives.ages[0, 2] == pytest.approx(0.2)
    assert lives.stack.tolist() == [0, 1]
    assert lives.age.tolist() == pytest.approx([0.6, 0.4])
    assert lives.weight.tolist() == [5000, 1000], "one below the interval was recorded by chance"
