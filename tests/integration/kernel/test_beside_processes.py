# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What no container can show: services whose memory grows beside their processes, swapped out, or against a limit, on a
host with a kernel of its own."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost
from ansible_collections.offheap.profiler.tests.integration.kernel.conftest import MACHINE
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """``said`` is what the verdict's sentence calls what grows, ``grown`` where the kernel itself counts it: lines of
    the unit's memory.stat and of its process's status, some of them taken off. ``limits`` are properties of the unit.
    """

    unit: str
    verdict: str
    said: str = ""
    grown: str = ""
    limits: str = ""


CASES = (
    Case("grow@page-cache.service", "page-cache", "cached files", "file -shmem"),
    Case("grow@pipes.service", "kernel-memory", "the kernel's memory for it", "kernel"),
    Case("grow@names.service", "kernel-memory", "the kernel's memory for it", "kernel"),
    Case("grow@sockets.service", "sockets", "its connections", "sock"),
    Case("grow@tmpfs.service", "shared-memory", "shared memory and files in memory", "shmem"),
    Case("grow@swapped.service", "swapped", "swap", "VmSwap"),
    Case("grow@hugetlb.service", "huge-pages", "reserved huge pages", "HugetlbPages"),
    Case("grow@locked.service", "other-memory", "other anonymous memory", "VmRSS"),
    # What exceeds MemoryHigh= goes to swap.
    Case("grow@slow-leak.service", "native-growth", "malloc in use", "VmRSS VmSwap", "MemoryHigh=16M"),
    Case("grow-java@java-heap.service", "does-not-fit", limits="MemoryMax=400M MemorySwapMax=0"),
    Case("grow-java@not-growing.service", "not-growing"),
)
MEASURED = [case for case in CASES if case.grown]
_RATE = r" \+([0-9.]+) ([KMG])iB/h ± ([0-9.]+) ([KMG])iB"


@dataclass(frozen=True)
class Seen:
    """What a run said and kept, and what the kernel counted before and after it: bytes an hour, by unit."""

    verdicts: dict[str, dict[str, Any]]
    samples: list[dict[str, Any]]
    rates: dict[str, float]


@pytest.fixture(scope="module")
def host(machine: LabHost) -> LabHost:
    """Some can be swapped out here, and huge pages are reserved."""
    machine.run(
        "swapon --show | grep zram || { modprobe zram && echo 1G >/sys/block/zram0/disksize && mkswap /dev/zram0"
        " && swapon /dev/zram0; }; sysctl -w vm.nr_hugepages=200"
    )
    return machine


def _triage(controller: Controller, name: str, units: list[str], watch: str) -> tuple[PlaybookResult, list[Any]]:
    variables = {"offheap_hosts": MACHINE, "offheap_units": units, "triage_watch": watch}
    directory = controller.directory / name
    result = controller.playbook("triage.yml", extra_vars={**variables, "offheap_triage": str(directory)}).check()
    looks = [json.loads(path.read_text()) for path in sorted((directory / MACHINE).glob("*.json"))]
    return result, [sample for look in looks for sample in look["samples"]]


def _verdicts(result: PlaybookResult) -> dict[str, dict[str, Any]]:
    found = next(task.result["verdicts"] for task in result.tasks if "verdicts" in task.result)
    return {verdict["unit"]: verdict for verdict in found}


def _counted(host: LabHost) -> tuple[float, dict[str, int]]:
    """When, by the host's clock, and what the kernel counts for each case."""
    script = "date +%s.%N\n" + "".join(
        f"echo {case.unit}; cat /proc/$(systemctl show -p MainPID --value {case.unit})/status"
        f" /sys/fs/cgroup$(systemctl show -p ControlGroup --value {case.unit})/memory.stat\n"
        for case in MEASURED
    )
    lines = host.run(script).stdout.splitlines()
    told: dict[str, dict[str, int]] = {}
    for line in lines[1:]:
        words = line.replace(":", "").split()
        if len(words) == 1 and words[0].endswith(".service"):
            here = told.setdefault(words[0], {})
        elif len(words) > 1 and words[1].isdigit():
            here[words[0]] = int(words[1]) << (10 if words[-1] == "kB" else 0)
    return float(lines[0]), {case.unit: _size(told[case.unit], case.grown.split()) for case in MEASURED}


def _size(told: dict[str, int], names: list[str]) -> int:
    return sum(-told[name[1:]] if name.startswith("-") else told[name] for name in names)


@pytest.fixture(scope="module")
def seen(host: LabHost, user: Controller) -> Seen:
    units = " ".join(case.unit for case in CASES)
    for case in CASES:
        if case.limits:
            host.run(f"systemctl set-property --runtime {case.unit} {case.limits}")
    host.run(f"systemctl start {units}")
    host.run("sleep 20")
    begin, before = _counted(host)
    result, samples = _triage(user, "triage", [case.unit for case in CASES], "75s")
    end, after = _counted(host)
    host.run(f"systemctl stop {units}")
    return Seen(
        _verdicts(result), samples, {unit: (after[unit] - size) * 3600 / (end - begin) for unit, size in before.items()}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.unit)
def test_the_verdict_is_right(seen: Seen, case: Case) -> None:
    assert seen.verdicts[case.unit]["verdict"] == case.verdict, seen.verdicts[case.unit]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case.unit)
def test_the_rate_is_what_the_kernel_counts(seen: Seen, case: Case) -> None:
    """From before the first look to after the last, which takes a little longer than what was looked at."""
    found = re.search(re.escape(case.said) + _RATE, seen.verdicts[case.unit]["reason"])
    assert found, seen.verdicts[case.unit]["reason"]
    rate, error = (float(found[at]) * 1024 ** (" KMG".index(found[at + 1])) for at in (1, 3))
    assert abs(rate - seen.rates[case.unit]) < error + 0.1 * seen.rates[case.unit]


def test_each_part_of_the_unit_is_in_the_account(seen: Seen) -> None:
    for sample in seen.samples:
        group = sample["cgroup"]
        assert sum(group["parts"].values()) == group["current"]
        # The kernel counts in batches for each processor, and what a process frees meanwhile.
        assert abs(group["parts"]["rest"]) < max(0.02 * group["current"], 2 * MIB), (sample["name"], group)


def test_each_part_of_the_host_is_in_the_account(seen: Seen) -> None:
    for sample in seen.samples:
        parts = dict(sample["host"])
        assert parts.pop("total") == sum(parts.values()) - parts["available"]
        assert abs(parts["rest"]) < 0.1 * sample["host"]["total"]


def test_a_host_whose_memory_goes_elsewhere_has_a_verdict_of_its_own(host: LabHost, user: Controller) -> None:
    host.run("systemctl start grow@other-memory")
    result, _ = _triage(user, "triage-of-the-host", ["systemd-journald.service"], "30s")
    host.run("systemctl stop grow@other-memory")
    verdict = _verdicts(result)["(host)"]
    assert verdict["verdict"] == "host"
    assert "processes that were not looked at" in verdict["reason"]
