# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns import lives_columns
from ansible_collections.offheap.profiler.plugins.plugin_utils.columns.series_reader import reading
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.lives import BUCKETS
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives
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
