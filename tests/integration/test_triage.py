# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One program for each verdict, in JVMs of two releases where it concerns Java, all looked at by one playbook."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult

RunPlaybook = Callable[..., PlaybookResult]
HostOf = Callable[[str], LabHost]

JDKS = {"app2": 17, "app3": 21}
JAVA = (
    "java-heap",
    "direct-buffers",
    "metaspace",
    "threads",
    "malloc-arenas",
    "mapped-files",
    "native-growth",
    "not-growing",
)
OTHERS = ("fragmentation", "native-growth", "other-memory", "stacks", "cannot-tell")
# What the verdict names.
IN_MEMORY = {
    "shared-memory": "/memfd:grown",
    "shm-open": "/dev/shm/grow-opened",
    "system-v": "segments of System V",
    "tmpfs": "/dev/shm/grown",
}
VERDICTS = {
    **{f"grow-java@{way}.service": way for way in JAVA},
    **{f"grow@{way}.service": way for way in OTHERS},
    **{f"grow@{way}.service": "shared-memory" for way in IN_MEMORY},
    "grow@huge-pages.service": "other-memory",
}
# A control group as the kubelet has its container runtime make, and the link to a log that names it.
SCOPE = f"cri-containerd-{'a1' * 32}.scope"
CONTAINER = "container shop/cart-0/cart"
START_CONTAINER = f"""
mkdir -p /var/log/containers
ln -sf /dev/null /var/log/containers/cart-0_shop_cart-{"a1" * 32}.log
setsid systemd-run --quiet --scope --slice=kubepods-besteffort-pod1.slice --unit={SCOPE} \\
    /usr/local/bin/grow native-growth < /dev/null > /dev/null 2>&1 &
"""
CASES = [(name, unit) for name in JDKS for unit in VERDICTS]


@dataclass
class Triage:
    """What the playbook did, said and kept; and what it said without root."""

    result: PlaybookResult
    verdicts: dict[tuple[str, str], dict[str, Any]]
    samples: dict[tuple[str, str], dict[str, Any]]
    without_root: dict[tuple[str, str], dict[str, Any]]
    listings: dict[str, tuple[list[str], list[str]]]
    pids: dict[tuple[str, str], tuple[int, int]]
    peaks: dict[tuple[str, str], int]


def _verdicts(result: PlaybookResult) -> dict[tuple[str, str], dict[str, Any]]:
    found: list[dict[str, Any]] = next(task.result["verdicts"] for task in result.tasks if "verdicts" in task.result)
    return {(verdict["host"], verdict["unit"]): verdict for verdict in found}


@pytest.fixture(scope="module")
def triage(lab: object, playbook: RunPlaybook, host: HostOf, controller: Controller) -> Iterator[Triage]:
    steady = [unit for unit, verdict in VERDICTS.items() if verdict != "cannot-tell"]
    for name in JDKS:
        host(name).run(f"systemctl start --no-block {' '.join(VERDICTS)}")
    host("app2").run(START_CONTAINER)
    for name in JDKS:

        def old_enough(name: str = name) -> bool:
            # What a JVM takes for its start is behind it, and the programs that do their work at once have done it.
            ages = host(name).run(
                "for u in " + " ".join(steady) + "; do ps -o etimes= -p $(systemctl show -p MainPID --value $u); done"
            )
            return len(ages.stdout.split()) == len(steady) and min(map(int, ages.stdout.split())) >= 5

        wait_for(old_enough, f"all units run on {name}")
    listings = {name: host(name).listing() for name in JDKS}
    pids = {(name, unit): host(name).main_pid(unit) for name in JDKS for unit in steady}
    variables = {
        "offheap_hosts": ",".join(JDKS),
        "offheap_units": list(VERDICTS),
        "offheap_containers": ["shop/cart-*"],
        "offheap_triage": str(controller.directory / "triage"),
        "triage_watch": "6s",
    }
    result = playbook("triage.yml", extra_vars=variables).check()
    after = {(name, unit): host(name).main_pid(unit) for name in JDKS for unit in steady}
    peaks = {
        key: int(host(key[0]).run(f"awk '/^VmHWM/ {{print $2}}' /proc/{pid}/status").stdout) << 10
        for key, pid in after.items()
    }
    kept = [
        json.loads(sorted((controller.directory / "triage" / name).glob("*.json"))[-1].read_text()) for name in JDKS
    ]
    few = {
        **variables,
        "offheap_units": ["grow-java@native-growth"],
        "offheap_triage": str(controller.directory / "triage-without-root"),
        "triage_watch": "1m",
        "ansible_become": False,
    }
    unprivileged = playbook("triage.yml", extra_vars=few, limit="app3").check()
    yield Triage(
        result,
        _verdicts(result),
        {(look["host"], sample["name"]): sample for look in kept for sample in look["samples"]},
        _verdicts(unprivileged),
        {name: (listings[name], host(name).listing()) for name in JDKS},
        {key: (pids[key], after[key]) for key in pids},
        peaks,
    )
    host("app2").run(f"systemctl stop {SCOPE}; rm -r /var/log/containers", check=False)
    for name in JDKS:
        host(name).run(f"systemctl stop {' '.join(VERDICTS)}; rm -rf /var/tmp/grow* /dev/shm/grow*", check=False)


@pytest.mark.parametrize(("name", "unit"), CASES)
def test_the_verdict_is_right(triage: Triage, name: str, unit: str) -> None:
    verdict = triage.verdicts[name, unit]
    assert verdict["verdict"] == VERDICTS[unit], verdict
    assert verdict["reason"] and verdict["next_step"] and verdict["source"]


def test_a_container_is_looked_into(triage: Triage) -> None:
    """By its control group; on the other host there is none of that name."""
    verdict = triage.verdicts["app2", CONTAINER]
    assert verdict["verdict"] == "native-growth", verdict
    assert "fab pod" in verdict["next_step"]
    (process,) = triage.samples["app2", CONTAINER]["processes"]
    assert process["exe"] == "/usr/local/bin/grow"
    absent = triage.verdicts["app3", "container shop/cart-*"]
    assert absent["verdict"] == "cannot-tell" and "0 run here" in absent["reason"]


@pytest.mark.parametrize("way", IN_MEMORY)
@pytest.mark.parametrize("name", JDKS)
def test_the_file_in_memory_that_grows_is_named(triage: Triage, name: str, way: str) -> None:
    """One that is mapped, and those that are written and closed; the lab has no memory controller."""
    assert f"; {IN_MEMORY[way]} has grown by " in triage.verdicts[name, f"grow@{way}.service"]["reason"]


@pytest.mark.parametrize(("name", "unit"), [case for case in CASES if VERDICTS[case[1]] != "cannot-tell"])
def test_the_classes_add_up_to_the_resident_set(triage: Triage, name: str, unit: str) -> None:
    (process,) = triage.samples[name, unit]["processes"]
    total = sum(sizes["resident"] for sizes in process["classes"].values())
    # The kernel counts these by itself, before; a service may have grown by all that it did until its peak was read.
    # A memory map is no snapshot: what a JVM gives back behind the reader and takes again before it is counted twice.
    counted = process["rss_anon"] + process["rss_file"] + process["rss_shmem"]
    assert 0.99 * counted < total < 1.1 * max(counted, triage.peaks[name, unit])


@pytest.mark.parametrize("name", JDKS)
def test_the_jvm_has_told_its_part(triage: Triage, name: str) -> None:
    (process,) = triage.samples[name, "grow-java@java-heap.service"]["processes"]
    jvm = process["jvm"]
    assert jvm["version"] == JDKS[name]
    assert jvm["flags"]["UseSerialGC"] == "true"
    assert jvm["heap_after_collection"] > 0 and jvm["metaspace"] > 0 and jvm["classes"] > 100
    assert (jvm["native_heap"] is not None) == (JDKS[name] >= 21)


@pytest.mark.parametrize("name", JDKS)
def test_the_jvm_and_the_memory_map_agree_on_a_heap_that_stays(triage: Triage, name: str) -> None:
    (process,) = triage.samples[name, "grow-java@not-growing.service"]["processes"]
    jvm = process["jvm"]
    # Without one of the survivor spaces.
    assert jvm["nmt"]["categories"]["Java Heap"] == pytest.approx(jvm["heap_committed"], rel=0.1)
    assert process["classes"]["java-heap"]["resident"] <= jvm["nmt"]["categories"]["Java Heap"]


@pytest.mark.parametrize("name", JDKS)
def test_nothing_has_changed_or_was_restarted(triage: Triage, name: str) -> None:
    before, after = triage.listings[name]
    assert before == after
    assert {key: pids for key, pids in triage.pids.items() if pids[0] != pids[1]} == {}
    assert triage.result.stats[name].changed == 0


def test_fewer_arenas_are_tried_and_taken_back(triage: Triage, playbook: RunPlaybook, host: HostOf) -> None:
    unit = "grow-java@malloc-arenas.service"
    app2 = host("app2")
    variables = {
        "offheap_hosts": "app2",
        "offheap_units": [unit],
        "profiled_service_mode": "swap",
        "profiled_service_swap_arena_max": 2,
        "profiled_service_healthy_seconds": 3,
    }
    before = app2.listing()
    swapped = playbook("enable-profiling.yml", extra_vars=variables).check()
    (told,) = [task.message for task in swapped.of("app2") if task.task.endswith("tell what a swap has changed")]
    assert unit in told and "MiB before" in told
    environment = app2.run(f"cat /proc/{app2.main_pid(unit)}/environ").stdout.split("\0")
    assert "MALLOC_ARENA_MAX=2" in environment
    assert not [word for word in environment if word.startswith(("LD_PRELOAD", "MALLOC_CONF", "JAVA_TOOL_OPTIONS"))]
    playbook("rollback.yml", extra_vars={"offheap_hosts": "app2"}).check()
    assert "MALLOC_ARENA_MAX" not in app2.run(f"cat /proc/{app2.main_pid(unit)}/environ").stdout
    assert app2.listing() == before


def test_without_root_what_can_be_read_is_and_the_rest_is_named(triage: Triage) -> None:
    verdict = triage.without_root["app3", "grow-java@native-growth.service"]
    assert verdict["verdict"] == "cannot-tell"
    assert "memory map" in verdict["reason"]
    assert verdict["rss"] > 1 << 20
    assert any("open files" in note for note in verdict["notes"])


def test_within_a_minute_there_are_five_looks(triage: Triage, controller: Controller) -> None:
    assert len(list((controller.directory / "triage-without-root/app3").glob("*.json"))) == 5
    assert len(list((controller.directory / "triage/app3").glob("*.json"))) == 2


def test_the_table_names_each_unit_with_its_next_step(triage: Triage) -> None:
    lines = triage.result.stdout.splitlines()
    for (name, unit), verdict in triage.verdicts.items():
        cells = [*unit.split(), name, verdict["verdict"]]
        (row,) = [line for line in lines if line.split()[: len(cells)] == cells]
        at = lines.index(row)
        assert verdict["reason"] in lines[at + 1]
        if verdict["verdict"] != "not-growing":
            assert lines[at + 2].strip() == f"Next: {verdict['next_step']}"
