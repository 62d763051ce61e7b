# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Where a host's memory goes when none of the units that were looked at grows: what is available falls, and a part of
/proc/meminfo grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..base.byte_size import as_text
from ..base.durations import duration
from .growth import Growth
from .look import Sample
from .next_step import look_again
from .rise import OF_TWO_LOOKS, SHORTEST, rise, since
from .rules import Diagnosis, Triaged, lasts, per_hour

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
    "sockets": ("what connections hold that nobody has read", "see whose queues are long: ss -tumnp"),
    "zram": ("memory that is compressed instead of swapped out", "see what is: zramctl, and swapon --show"),
    "zswap": ("memory that is compressed instead of swapped out", "see what is: grep -i zswap /proc/meminfo"),
    "rest": (
        "memory that the kernel accounts to nothing",
        "look at drivers (graphics, network) and at the balloon of a virtual machine: lsmod, dmesg, and its hypervisor",
    ),
}


def judge(samples: Sequence[Sample], host: str, inventories: Sequence[str] = ()) -> tuple[Growth, Triaged] | None:
    """What takes a host's memory, by all looks at it; None if what is available does not fall by more than noise.

    Each look at a unit is one at its host; those at the unit that was looked at most often count. ``inventories`` are
    what the next command needs with -i.
    """
    ordered = sorted((sample for sample in samples if sample.host), key=lambda sample: sample.time)
    last_boot = max((sample.order, sample.boot) for sample in ordered)[1] if ordered else ""
    since_boot = [sample for sample in ordered if sample.boot == last_boot]
    counts = Counter(sample.name for sample in since_boot)
    looks = [sample for sample in since_boot if sample.name == max(counts, key=counts.__getitem__)]
    if len(looks) < 2 or looks[-1].time - looks[0].time < SHORTEST:
        return None
    last = looks[-1].host
    least = max(_LEAST, _LEAST_PART * last.get("total", 0))
    usual = least / OF_TWO_LOOKS
    looks = looks[since([look.time for look in looks], [look.host.get("available", 0) for look in looks], usual) :]
    times = [look.time for look in looks]
    fallen = rise(times, [-look.host.get("available", 0) for look in looks], usual)
    if fallen.size <= max(least, fallen.chance):
        return None
    growth = Growth(NAME, seconds=times[-1] - times[0], growth=fallen, host=last)
    known = [part for part in _PARTS if all(part in look.host for look in looks)]
    grown = {part: rise(times, [look.host[part] for look in looks], usual) for part in known}
    part = max(grown, key=lambda name: grown[name].size, default="")
    left = last.get("available", 0)
    reason = (
        f"in {duration(growth.seconds)} the available memory fell by {per_hour(growth, fallen).removeprefix('+')},"
        " and no unit that was looked at grows;"
        f" the {as_text(left)} that are left last {lasts(left, fallen, growth.seconds)}"
    )
    if not part or grown[part].size * 3 < fallen.size:
        again = look_again(counts, host, inventories)
        step = f"watch for longer: {again} -e triage_watch=1h"
        return growth, Triaged(Diagnosis.HOST, f"{reason}; no part explains it", step, _SOURCE)
    name, step = _PARTS[part]
    return growth, Triaged(Diagnosis.HOST, f"{reason}; {name} {per_hour(growth, grown[part])}", step, _SOURCE)
