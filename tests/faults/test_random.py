# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The whole hunt, made short, struck at random moments: nothing is lost, nothing is left, nothing hangs.

OFFHEAP_FAULTS_SEED repeats a run, OFFHEAP_RANDOM_FAULTS is how many there are.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from ansible_collections.offheap.profiler.tests.faults.batch import Seen
from ansible_collections.offheap.profiler.tests.faults.fault import SERVICE, Fault

COUNT = int(os.environ.get("OFFHEAP_RANDOM_FAULTS", "60"))
SEED = int(os.environ.get("OFFHEAP_FAULTS_SEED", "0"))
MOMENTS = {
    "enable": ["Find what cannot work", "Write the drop-ins"],
    "collect": ["Bring new captures"],
    "rollback": ["Take the profiler out of each unit"],
    "purge": ["Take the profiler out of each unit", "Bring new captures", "Remove each spool"],
}
# Of its small file system, which the spool is on, nothing is left.
FILLED = "head -c 64M /dev/zero > /var/lib/offheap/fill"
STRIKES = {
    "sshd is killed": "pkill -KILL sshd-session; pkill -KILL -f 'sshd: '",
    "the network is gone": "unplug",
    "the host reboots": "systemctl reboot",
    "the disk is full": FILLED,
}
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")


def random_fault(number: int) -> Fault:
    """The same for a number and a seed."""
    chance = random.Random(f"{SEED}/{number}")
    do = chance.choice(sorted(MOMENTS))
    blow = chance.choice([*STRIKES, *SIGNALS])
    return Fault(
        f"{blow} ({number})",
        "random",
        do,
        service=SERVICE + "\n[Install]\nWantedBy=multi-user.target\n",
        unit=f"fault-random-{number}.service",
        at=chance.choice(MOMENTS[do]),
        delay=chance.uniform(0, 4),
        strike=STRIKES.get(blow, ""),
        signal=blow if blow in SIGNALS else "",
        small=blow == "the disk is full",
    )


@pytest.mark.soak_only
@pytest.mark.parametrize(
    "fault", [random_fault(number) for number in range(COUNT)], ids=lambda fault: f"{fault.do}: {fault.name}"
)
def test_struck_at_random(fault: Fault, tried: Callable[[Fault], Seen], request: pytest.FixtureRequest) -> None:
    request.node.user_properties.append(("kind", fault.kind))
    seen = tried(fault)
    assert seen.took_after_the_blow < 120, f"it hung for {seen.took_after_the_blow:.0f} s: {seen.output}"
    assert seen.problem_at_the_end == "", f"what was struck does not succeed: {seen.problem_at_the_end}"
    assert (seen.left, seen.processes) == ([], ""), "something of ours is left"
    assert seen.state == "active", "the service is left worse"
    assert seen.dumps <= seen.archived, f"captures are lost: {seen.dumps - seen.archived}"
    assert seen.damaged == [], "captures are damaged"
