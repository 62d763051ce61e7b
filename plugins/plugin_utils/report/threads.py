# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which thread allocated what is live: jemalloc counts each stack by thread, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..model.profile import Profile, Resolver, from_dump
from ..readers.heap_v2 import CountColumns, Dump

# More threads than that are no view; the others are told together.
_MOST = 12
_NAMELESS = "thread {uid}"


@dataclass(frozen=True)
class ThreadProfile:
    """What threads of one name hold; ``count`` is their number."""

    name: str
    count: int
    profile: Profile


def by_thread(dump: Dump, resolve: Resolver) -> list[ThreadProfile]:
    """The threads of a dump by name, those that hold most first. A thread that has ended is still counted."""
    names = {thread.uid: thread.name or _NAMELESS.format(uid=thread.uid) for thread in dump.threads}
    sampled: dict[str, int] = {}
    uids: dict[str, set[int]] = {}
    for uid, size in zip(dump.thread_uid, dump.thread_counts.bytes, strict=True):
        name = names.get(uid, _NAMELESS.format(uid=uid))
        sampled[name] = sampled.get(name, 0) + size
        uids.setdefault(name, set()).add(uid)
    ranked = sorted((name for name in sampled if sampled[name]), key=lambda name: (-sampled[name], name))
    groups = [(name, uids[name]) for name in ranked[:_MOST]]
    if others := ranked[_MOST:]:
        groups.append((f"{len(others)} other names", set().union(*(uids[name] for name in others))))
    frames = resolve(dump) if groups else []
    found = [ThreadProfile(name, len(of), from_dump(_only(dump, of), lambda _dump: frames)) for name, of in groups]
    return sorted(found, key=lambda thread: -thread.profile.total_bytes)


def _only(dump: Dump, uids: set[int]) -> Dump:
    """The dump with what these threads hold in place of what all hold."""
    counts = CountColumns()
    for column in (counts.objects, counts.bytes, counts.accum_objects, counts.accum_bytes):
        column.frombytes(bytes(8 * len(dump.stack_ends)))
    for record, stack in _records(dump, uids):
        counts.objects[stack] += dump.thread_counts.objects[record]
        counts.bytes[stack] += dump.thread_counts.bytes[record]
    return replace(dump, counts=counts)


def _records(dump: Dump, uids: set[int]) -> Iterator[tuple[int, int]]:
    for record, uid in enumerate(dump.thread_uid):
        if uid in uids:
            yield record, dump.thread_stack[record]
