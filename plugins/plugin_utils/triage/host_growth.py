# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Where a host's memory goes when none of the units that were looked at grows: what is available falls, and a part of
/proc/meminfo grows."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.byte_size import as_text
from ..base.durations import duration
from .growth import Growth, Sample
from .rules import Diagnosis, Triaged, per_hour

#: what stands in the place of a unit's name
NAME = "(host)"
# By how much the available memory must fall: programs that come and go take so much for a while.
_LEAST, _LEAST_PART = 64 << 20, 0.01
_SOURCE = 'the kernel\'s document "The /proc Filesystem", meminfo; free(1)'
# Part -> what it is, and how to see more. What the kernel gives back when it is short lowers nothing.
_PARTS = {
    "processes": (
        "processes that were not looked at",
        "see which grow: ps -eo rss,pid,unit,args --sort=-rss | head; then run triage for their units",
    ),
    "shared-memory": (
        "shared memory and files in memory",
        "see which these are: df -t tmpfs, ls -l /dev/shm, ipcs -m; each stays until somebody removes it",
    ),
    "slab": ("the kernel's own objects (slab)", "see which: slabtop -o -s c | head -20, twice"),
    "page-tables": ("page tables", "see which process maps so much: grep -H VmPTE /proc/[0-9]*/status | sort -nk2"),
    "vmalloc": ("what the kernel and its modules map (vmalloc)", "see who: sort -nk2 /proc/vmallocinfo | tail"),
    "per-cpu": (
        "what the kernel keeps for each processor",
        "see whether control groups pile up that nothing is left in: grep memory /proc/cgroups",
    ),
    "huge-pages": ("reserved huge pages", "see who reserved them: grep Huge /proc/meminfo, and vm.nr_hugepages"),
    "zswap": ("memory that is compressed instead of swapped out", "see what is: grep -i zswap /proc/meminfo"),
    "rest": (
        "memory that the kernel accounts to nothing",
        "look at drivers (graphics, network) and at the balloon of a virtual machine: lsmod, dmesg, and its hypervisor",
    ),
}


def judge(samples: Sequence[Sample], host: str) -> tuple[Growth, Triaged] | None:
    """What takes a host's memory, by all looks at it; None if what is available does not fall by more than noise."""
    ordered = sorted((sample for sample in samples if sample.host), key=lambda sample: sample.time)
    looks = [sample for sample in ordered if sample.boot == ordered[-1].boot]
    if len(looks) < 2 or looks[-1].time == looks[0].time:
        return None
    first, last = looks[0].host, looks[-1].host
    left = last.get("available", 0)
    fallen = first.get("available", 0) - left
    if fallen <= max(_LEAST, _LEAST_PART * last.get("total", 0)):
        return None
    growth = Growth(NAME, seconds=looks[-1].time - looks[0].time, growth=fallen, host=last)
    grown = {part: last[part] - first[part] for part in _PARTS if part in first and part in last}
    part = max(grown, key=lambda name: grown[name], default="")
    reason = (
        f"in {duration(growth.seconds)} the available memory fell by {as_text(growth.per_hour(fallen))}/h, and no unit"
        f" that was looked at grows; the {as_text(left)} that are left last {duration(left * growth.seconds / fallen)}"
    )
    if not part or grown[part] * 3 < fallen:
        step = f"watch {host} for longer: -e triage_watch=1h"
        return growth, Triaged(Diagnosis.HOST, f"{reason}; no part explains it", step, _SOURCE)
    name, step = _PARTS[part]
    return growth, Triaged(Diagnosis.HOST, f"{reason}; {name} {per_hour(growth, grown[part])}", step, _SOURCE)
