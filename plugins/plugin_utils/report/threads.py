# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which thread allocated what is live: jemalloc also counts each stack by thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import libraries
from ..model.samples import BYTES, Samples

if TYPE_CHECKING:
    import numpy as np
else:
    np = libraries.optional("numpy")

# More threads would be unreadable; the others form one group.
_MOST = 12
_NAMELESS = "thread {uid}"
_OTHERS = "other threads"


@dataclass(frozen=True)
class ThreadGroup:
    """What threads of one name hold, in bytes by stack of the samples; ``count`` is their number."""

    name: str
    count: int
    bytes: list[float]


def by_name(samples: Samples) -> list[ThreadGroup]:
    """The threads by name, those that hold most first. Ended threads are still counted."""
    groups: dict[str, list[int]] = {}
    for uid in samples.thread_uids():
        groups.setdefault(samples.thread_names.get(uid) or _NAMELESS.format(uid=uid), []).append(uid)
    found = [_group(samples, name, uids) for name, uids in groups.items()]
    found = sorted((group for group in found if any(group.bytes)), key=lambda group: (-sum(group.bytes), group.name))
    if others := found[_MOST:]:
        uids = [uid for group in others for uid in groups[group.name]]
        found[_MOST:] = [_group(samples, _OTHERS, uids)]
    return sorted(found, key=lambda group: -sum(group.bytes))


def _group(samples: Samples, name: str, uids: list[int]) -> ThreadGroup:
    chosen = np.isin(samples.thread_uid, uids)
    held = np.bincount(samples.thread_stack[chosen], samples.thread_values[BYTES][chosen], len(samples))
    return ThreadGroup(name, len(uids), held.tolist())
