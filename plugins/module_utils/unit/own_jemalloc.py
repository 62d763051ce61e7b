# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A unit whose program has jemalloc linked in: which variable switches that on, and whether it has understood it."""

from __future__ import annotations

import re
from typing import Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats import elf, malloc_conf
from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.malloc import linked_jemalloc
from ansible_collections.offheap.profiler.plugins.module_utils.unit import health, preflight, service
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

#: a dump for each GiB allocated keeps a busy service from filling the disk
OPTIONS: dict[str, malloc_conf.Value] = {"prof_active": True, "lg_prof_sample": 19, "lg_prof_interval": 30}
_COMPLAINT = re.compile(r"<jemalloc>: (?:Invalid|Out-of-range) conf[^\n]*")


def check(program: str, unit: Service) -> str:
    """The variable that configures the program's own jemalloc. Raises Refusal if it has none that can profile."""
    try:
        linked = elf.read(program)
    except elf.ElfError as error:
        raise Refusal("not-readable", f"{program}, which {unit.name} runs, cannot be examined: {error}") from error
    if linked.is_static or linked.runs_on_musl:
        raise Refusal(
            "musl",
            f"{program} runs on musl, or may do so as it is statically linked. There, jemalloc's profiler can deadlock"
            " as it starts (jemalloc#585, #2282). Use a build of it that is linked dynamically to glibc",
        )
    found, _speaks, can_profile = linked_jemalloc.look(program)
    if not found:
        raise Refusal(
            "no-own-jemalloc",
            f"{program}, which {unit.name} runs, has no jemalloc of its own linked in. Leave profiled_service_mode at"
            " profile, which preloads one",
        )
    if len(found) > 1:
        raise Refusal(
            "two-own-jemallocs",
            f"{program} reads {' and '.join(found)}, so it has more than one jemalloc. Set one of them in the unit by"
            " hand, with prof:true and a prof_prefix, and name that directory in offheap_offered",
        )
    if not can_profile:
        raise Refusal(
            "own-jemalloc-without-profiler",
            f"the jemalloc in {program} was built without its profiler. Build it with --enable-prof (in Rust:"
            " tikv-jemallocator's feature profiling)",
        )
    preflight.check_secure(program, unit)
    return found[0]


def see(unit: Service, environment: Mapping[str, str]) -> None:
    """See that the running unit has taken what its ``environment`` tells it. Raises Unhealthy."""
    leaders = unit.leaders()
    for pid in leaders:
        if not service.carries(pid, environment):
            raise health.Unhealthy(
                f"process {pid} of {unit.name} does not have our {', '.join(environment)}: a start script sets or"
                " removes them, or the program writes over its environment"
            )
    said = "\n".join(systemd.journal(f"_SYSTEMD_INVOCATION_ID={unit.text['InvocationID']}"))
    complaint = _COMPLAINT.search(said)
    if complaint:
        raise health.Unhealthy(f"its jemalloc does not know what it was told: {complaint[0]}")
