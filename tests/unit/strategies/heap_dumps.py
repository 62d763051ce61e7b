# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Dumps as jemalloc would write them, for property tests: a described profile and its text."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

Counts = tuple[int, int, int, int]


@dataclass(frozen=True)
class DescribedStack:
    addresses: list[int]
    counts: Counts
    threads: list[tuple[int, Counts]]


@dataclass(frozen=True)
class DescribedMapping:
    start: int
    size: int
    permissions: str
    offset: int
    path: str
    deleted: bool


@dataclass(frozen=True)
class DescribedDump:
    """What is in a dump, and its text."""

    interval: int = 524288
    total: Counts = (0, 0, 0, 0)
    threads: list[tuple[int, Counts, str]] = field(default_factory=list)
    stacks: list[DescribedStack] = field(default_factory=list)
    mappings: list[DescribedMapping] = field(default_factory=list)

    def text(self) -> bytes:
        lines = [f"heap_v2/{self.interval}", f"  t*: {_counts(self.total)}"]
        for uid, counts, name in self.threads:
            lines.append(f"  t{uid}: {_counts(counts)}" + (f" {name}" if name else ""))
        for stack in self.stacks:
            lines.append("@" + "".join(f" {address:#x}" for address in stack.addresses))
            lines.append(f"  t*: {_counts(stack.counts)}")
            lines.extend(f"  t{uid}: {_counts(counts)}" for uid, counts in stack.threads)
        lines.extend(["", "MAPPED_LIBRARIES:"])
        for mapping in self.mappings:
            end = mapping.start + mapping.size
            line = f"{mapping.start:x}-{end:x} {mapping.permissions} {mapping.offset:08x} 08:01 4711"
            if mapping.path:
                line = f"{line:<73}{mapping.path}"
            lines.append(line + (" (deleted)" if mapping.deleted else ""))
        return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _counts(counts: Counts) -> str:
    return "{}: {} [{}: {}]".format(*counts)


def counts() -> st.SearchStrategy[Counts]:
    number = st.one_of(st.integers(0, 1000), st.integers(0, 2**64 - 1))
    return st.tuples(number, number, number, number)


def addresses() -> st.SearchStrategy[list[int]]:
    return st.lists(st.one_of(st.sampled_from([0, 0x1000, 0x7F00DEADBEEF]), st.integers(0, 2**64 - 1)), max_size=12)


def stacks() -> st.SearchStrategy[DescribedStack]:
    threads = st.lists(st.tuples(st.integers(0, 2**32), counts()), max_size=3)
    return st.builds(DescribedStack, addresses(), counts(), threads)


def mappings() -> st.SearchStrategy[DescribedMapping]:
    paths = st.one_of(
        st.just(""),
        st.sampled_from(["/usr/lib/libz.so.1", "/opt/My App/lib (x)/a b.so", "[heap]", "[vdso]", "/memfd:jit"]),
        st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1).map("/".__add__),
    ).filter(lambda path: not path.endswith(" (deleted)"))
    return st.builds(
        DescribedMapping,
        start=st.integers(0, 2**47),
        size=st.integers(1, 2**40),
        permissions=st.sampled_from(["r-xp", "rw-p", "r--p", "---p", "rwxp", "rw-s"]),
        offset=st.integers(0, 2**40),
        path=paths,
        deleted=st.booleans(),
    ).map(lambda mapping: mapping if mapping.path else DescribedMapping(**{**vars(mapping), "deleted": False}))


def dumps() -> st.SearchStrategy[DescribedDump]:
    names = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=15)
    return st.builds(
        DescribedDump,
        interval=st.sampled_from([0, 1, 65536, 524288, 2**40]),
        total=counts(),
        threads=st.lists(st.tuples(st.integers(0, 2**32), counts(), names), max_size=4),
        stacks=st.lists(stacks(), max_size=6),
        mappings=st.lists(mappings(), max_size=6),
    )
