# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What `make corpus` has seen of others' profiles is what its page says, and is as their own readers say it."""

from __future__ import annotations

from ansible_collections.offheap.profiler.tests.corpus import corpus_page, made
from ansible_collections.offheap.profiler.tests.corpus.catalog import CASES
from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Own, differences


def test_each_file_of_the_corpus_was_read_as_its_writers_own_reader_reads_it() -> None:
    seen = made.kept()
    assert {one.name for one in seen} == {path.stem for path in made.SEEN.iterdir()} == {case.name for case in CASES}
    assert [one for one in seen if one.differences] == []


def test_the_page_is_written_from_what_was_seen() -> None:
    assert made.PAGE.read_text() == corpus_page.page(made.kept())


def test_a_difference_is_seen() -> None:
    rows = [("hold", 4096.0), ("take(int)", 50.0)]
    assert differences(Own(4146, {"hold": 4096, "take": 50}), 4146.4, rows) == []
    assert differences(Own(4148, {}), 4146.0, rows) == ["total 4146, its own 4148"]
    assert differences(Own(4146, {"hold": 4098}), 4146.0, rows) == ["hold 4096, its own 4098"]
    assert differences(Own(4146, {"other": 50}), 4146.0, rows) == ["other 0, its own 50"]
    assert differences(Own(4100, {"hold": 4110}, digits=2), 4146.0, rows) == []
    assert differences(Own(4146, {"near": 7}, nearest=True), 4146.0, [*rows, ("lib.so+0x77", 7.0)]) == []
