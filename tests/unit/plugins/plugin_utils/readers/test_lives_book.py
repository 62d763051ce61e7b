# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.model.lives import BUCKETS
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import lives_book
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.lives_book import LivesFormatError

SMALL = b"""\
offheap_lives/1 65536
1764037000.000 1764037100.500
7 700
@ 0x7f0000001000 0x7f0000002000
5 500 3
0 1 10 2 2 300
90000 100 95000 100
@
1 64 0

100400 64
end 2 3
"""


def test_a_book_becomes_columns() -> None:
    book = lives_book.parse(SMALL, "small.lives")
    assert (book.interval, book.began, book.now, book.lost) == (65536, 1764037000.0, 1764037100.5, 7)
    assert (list(book.addresses), list(book.ends)) == ([0x7F0000001000, 0x7F0000002000], [2, 2])
    assert list(book.births) == [5, 1]
    assert list(book.deaths[:3]) == [1, 0, 2] and sum(book.deaths) == 3 and len(book.deaths) == 2 * BUCKETS
    assert list(book.ages[:3]) == [10, 0, 300]
    assert (list(book.stack), list(book.born), list(book.size)) == ([0, 0, 1], [90000, 95000, 100400], [100, 100, 64])


def test_an_empty_book_is_one() -> None:
    book = lives_book.parse(b"offheap_lives/1 1\n1.000 2.000\n0 0\nend 0 0\n", "empty")
    assert (len(book.ends), len(book.stack)) == (0, 0)


@pytest.mark.parametrize(
    ("before", "after", "line", "expected"),
    [
        (b"offheap_lives/1", b"offheap_lives/2", 1, "the header"),
        (b"1764037100.500", b"1764036000.500", 2, "a time at which a book can have begun"),
        (b"1764037100.500", b"99999999999999.500", 2, "when the book began"),
        (b"7 700", b"7", 3, "the births that found no room"),
        (b"@ 0x7f", b"@ 7f", 4, "a stack"),
        (b"5 500 3", b"5 500", 5, "births, bytes and deaths"),
        (b"5 500 3", b"4 500 3", 7, "1 objects that live"),
        (b"5 500 3", b"6 500 4", 7, "2 objects that live"),
        (b"2 2 300", b"2 2 30", 6, "ascending buckets with ages that lie in them"),
        (b"2 2 300", b"33 2 300", 6, "ascending buckets"),
        (b"2 2 300", b"0 2 30", 6, "ascending buckets"),
        (b"2 2 300", b"2 2 " + b"9" * 30, 6, "ages at death"),
        (b"90000 100 95000", b"90000 100 950000", 7, "births before the book was copied"),
        (b"95000 100", b"95000 9999999999999999", 7, "of sizes that there are"),
        (b"95000 100", b"95000", 7, "when each object that lives was born"),
        (b"end 2 3", b"end 2 4", 12, "'end 2 3'"),
        (b"end 2 3\n", b"", 12, "or 'end <stacks> <living>'"),
        (b"end 2 3\n", b"end 2 3\nmore\n", 13, "nothing behind the end"),
    ],
)
def test_what_is_no_book_is_refused_with_its_line(before: bytes, after: bytes, line: int, expected: str) -> None:
    with pytest.raises(LivesFormatError) as refused:
        lives_book.parse(SMALL.replace(before, after), "bad.lives")
    assert expected in str(refused.value)
    assert f"line {line}" in str(refused.value)


@given(st.binary(max_size=200) | st.integers(0, len(SMALL)).map(lambda end: SMALL[:end]))
@example(SMALL[:-1])
def test_any_bytes_are_a_book_or_refused(data: bytes) -> None:
    if data != SMALL:
        with pytest.raises(LivesFormatError):
            lives_book.parse(data, "any")


@given(st.integers(0, len(SMALL) - 1), st.binary(min_size=0, max_size=3))
def test_a_book_with_any_change_agrees_with_itself_or_is_refused(at: int, new: bytes) -> None:
    try:
        book = lives_book.parse(SMALL[:at] + new + SMALL[at + 1 :], "changed")
    except LivesFormatError:
        return
    assert sum(book.births) - sum(book.deaths) == len(book.stack) == len(book.born) == len(book.size)
