# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a service offers is a whole profile, or is refused with the reason."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats import limits
from ansible_collections.offheap.profiler.plugins.module_utils.spool import offered_profile
from ansible_collections.offheap.profiler.plugins.module_utils.spool.offered_profile import NoProfileError
from ansible_collections.offheap.profiler.tests.hostile.bounds import costs_at_most
from ansible_collections.offheap.profiler.tests.unit.strategies import offers

MAPPINGS = b"\nMAPPED_LIBRARIES:\n00400000-00401000 r-xp 0 00:00 0 /a\n7ff0-7ff1 rw-p 0 00:00 0 [stack]\n"
JEMALLOC = b"heap_v2/524288\n  t*: 1: 8 [0: 0]\n" + MAPPINGS
GPERFTOOLS = b"heap profile: 1: 8 [1: 8] @ heap_v2/524288\n" + MAPPINGS


@pytest.mark.parametrize(
    ("data", "prefix"), [(offers.pprof(5), "pprof"), (JEMALLOC, "jeprof"), (GPERFTOOLS, "gperftools")]
)
def test_whole_profiles(data: bytes, prefix: str) -> None:
    assert offered_profile.prefix_of(offered_profile.unpacked(data)) == prefix
    assert offered_profile.prefix_of(offered_profile.unpacked(gzip.compress(data))) == prefix


@given(st.data())
@pytest.mark.parametrize("packed", [False, True])
def test_a_profile_that_is_cut_off_is_none(packed: bool, data: st.DataObject) -> None:
    """Unless the cut is between two fields of pprof, which nobody could see but by gzip."""
    whole = offers.packed(5) if packed else JEMALLOC
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(NoProfileError):
        offered_profile.prefix_of(offered_profile.unpacked(cut))


@pytest.mark.parametrize(
    "data",
    [b"", b"ok\n", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", offers.pprof(5) + b"\x0a\x7f"],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(NoProfileError, match="neither pprof's nor"):
        offered_profile.prefix_of(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"<html>", "it is a page or a picture"),
        (b'{"head":{"callFrame":{}}}', "it is a heap of JavaScript's own objects"),
        (b"Nettrace\x14\0\0\0!FastSerialization.1", r"it is a trace of \.NET"),
        (b"goroutine profile: total 5\n", "not of memory: ask the service for its heap"),
        (b"\x28\xb5\x2f\xfd\x20\x00", "packed with zstd: have the service write it plain or with gzip"),
        (b"heap profile: 3: 96 [3: 96] @ heap/1048576\n1: 32 [1: 32] @ 0x1\n", "leave out debug=1"),
    ],
)
def test_what_a_service_answers_instead_is_named(data: bytes, why: str) -> None:
    with pytest.raises(NoProfileError, match=why):
        offered_profile.prefix_of(data)


@given(st.binary())
def test_anything(data: bytes) -> None:
    try:
        offered_profile.prefix_of(offered_profile.unpacked(data))
    except NoProfileError as error:
        assert str(error)


def test_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LARGEST_DUMP", 1 << 20)
    bomb = gzip.compress(bytes(64 << 20))
    with costs_at_most(seconds=2, mib=8), pytest.raises(NoProfileError, match="more than 1 MiB when unpacked"):
        offered_profile.unpacked(bomb)


def test_damage_and_what_follows() -> None:
    whole = offers.packed(5)
    with pytest.raises(NoProfileError, match="damaged"):
        offered_profile.unpacked(whole[:-8] + bytes(8))
    with pytest.raises(NoProfileError, match="does not end where it ends"):
        offered_profile.unpacked(whole + b"more")
