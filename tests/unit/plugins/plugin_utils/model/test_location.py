# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Where addresses lie. All are return addresses: the call is one byte before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.maps import Mapping
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.location import JIT, NOWHERE, Location, locate
from ansible_collections.offheap.profiler.tests.unit.strategies import heap_dumps

BUILD_ID = "00112233445566778899aabbccddeeff00112233"
LARGEST = (1 << 64) - 1


def _mapped(path: str, permissions: str = "r-xp", offset: int = 0, deleted: bool = False) -> Mapping:
    return Mapping(0x10000, 0x20000, permissions, offset, path, deleted)


def _one(address: int, *mappings: Mapping, build_ids: dict[str, str] | None = None) -> Location:
    (found,) = locate([address], mappings, build_ids or {})
    return found


def test_a_place_in_a_file_is_known_by_build_id_and_offset() -> None:
    library = _mapped("/usr/lib/libz.so.1", offset=0x3000)
    found = _one(0x10101, library, build_ids={"/usr/lib/libz.so.1": BUILD_ID})
    assert found == Location("/usr/lib/libz.so.1", BUILD_ID, 0x3100, 0x10101)
    assert found.in_file and found.key == (BUILD_ID, 0x3100)
    assert _one(0x10101, library).key == ("/usr/lib/libz.so.1", 0x3100)


def test_a_file_that_was_replaced_while_it_ran_has_its_build_id() -> None:
    """As after a deploy: the collection has read the mapped file itself, by the process's map_files."""
    old, new = _mapped("/srv/app", deleted=True), Mapping(0x30000, 0x40000, "r-xp", 0, "/srv/app", False)
    build_ids = {"/srv/app": BUILD_ID}
    assert _one(0x10101, old, build_ids=build_ids).build_id == BUILD_ID
    assert _one(0x30101, new, build_ids=build_ids).build_id == BUILD_ID
    # A plugin that was loaded again: the facts are of the first mapping, and the other is another file.
    assert _one(0x10101, old, new, build_ids=build_ids).build_id == BUILD_ID
    assert _one(0x30101, old, new, build_ids=build_ids).build_id == ""


@pytest.mark.parametrize("path", ["", "/memfd:doublemapper", "[anon:v8]", "//anon", "/dev/zero"])
def test_executable_memory_of_no_file_is_compiled_code_at_its_address(path: str) -> None:
    found = _one(0x10101, _mapped(path, "rwxp", offset=0x3000))
    assert found == Location(JIT, "", 0x10100, 0x10101)
    assert not found.in_file


@pytest.mark.parametrize(
    "mapping",
    [
        _mapped("", "rw-p"),
        _mapped("[heap]", "rw-p"),
        # Where HotSpot keeps the methods that interpreted frames point to.
        _mapped("/jdk/lib/server/classes.jsa", "rw-p", offset=0x3000),
        Mapping(0x30000, 0x40000, "r-xp", 0, "/srv/app", False),
        Mapping(0x1000, 0x10000, "r-xp", 0, "/srv/app", False),
    ],
    ids=["anonymous", "heap", "classes.jsa", "below", "above"],
)
def test_what_is_no_code_is_nowhere_at_its_address(mapping: Mapping) -> None:
    build_ids = {"/jdk/lib/server/classes.jsa": BUILD_ID, "/srv/app": BUILD_ID}
    found = _one(0x10101, mapping, build_ids=build_ids)
    assert found == Location(NOWHERE, "", 0x10100, 0x10101)
    assert not found.in_file


def test_the_kernels_own_pages_are_images_without_a_build_id() -> None:
    assert _one(0x10101, _mapped("[vdso]")) == Location("[vdso]", "", 0x100, 0x10101)


def test_the_call_decides_not_the_return() -> None:
    below = Mapping(0x10000, 0x11000, "r-xp", 0, "/srv/below", False)
    above = Mapping(0x11000, 0x12000, "r-xp", 0, "/srv/above", False)
    assert [_one(at, above, below).path for at in (0x10000, 0x10001, 0x11000, 0x11001, 0x12000, 0x12001)] == [
        NOWHERE,
        "/srv/below",
        "/srv/below",
        "/srv/above",
        "/srv/above",
        NOWHERE,
    ]


@pytest.mark.parametrize("address", [0, 1, LARGEST])
def test_the_ends_of_the_address_space_are_places_too(address: int) -> None:
    assert _one(address, _mapped("/srv/app")) == Location(NOWHERE, "", max(address - 1, 0), address)
    assert _one(address) == Location(NOWHERE, "", max(address - 1, 0), address)


def test_a_path_that_is_no_text_can_be_written_all_the_same() -> None:
    assert _one(0x10101, _mapped("/srv/\udcff")).path == "/srv/\ufffd"


def test_places_are_columns_in_the_order_of_the_addresses() -> None:
    found = locate([0x10101, 5, 0x10201], [_mapped("/srv/app")], {})
    assert len(found) == 3
    assert [location.address for location in found] == [0x10101, 5, 0x10201]
    assert [location.path for location in found] == ["/srv/app", NOWHERE, "/srv/app"]


@given(st.lists(st.integers(0, LARGEST)), st.lists(heap_dumps.mappings(), max_size=6))
def test_any_addresses_and_mappings_have_places(
    addresses: list[int], described: list[heap_dumps.DescribedMapping]
) -> None:
    mappings = [Mapping(m.start, m.start + m.size, m.permissions, m.offset, m.path, m.deleted) for m in described]
    found = list(locate(addresses, mappings, {}))
    assert [location.address for location in found] == addresses
    for location in found:
        if not location.in_file:
            assert location.offset == max(location.address - 1, 0)
