# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From samples to verdicts, each rule by its own case; and samples that a host may not send."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.plugin_utils.triage import findings, host_growth, rules, snapshots
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage import growth as memory_growth
from ansible_collections.offheap.profiler.plugins.plugin_utils.triage.look import SampleError, parse

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[5]
CLASSES = (
    "java-heap code-cache metaspace thread-stacks malloc-heap glibc-arenas malloc-mmapped other-malloc mapped-files"
    " shared-memory jit unknown"
).split()


def sample(time: float, *, free: tuple[int, int] | None = (0, 0), arenas: int = 0, **more: Any) -> dict[str, Any]:
    """A look at a process with 10 MiB in each class, or the MiB given by class name; free is (heap, arenas), swapped by
    class name as well, huge are reserved huge pages."""
    sizes = {name: more.pop(name.replace("-", "_"), 10) * MIB for name in CLASSES}
    swapped = {name: size * MIB for name, size in more.pop("swapped", {}).items()}
    process: dict[str, Any] = {
        "pid": 50,
        "start": 7,
        "rss": sum(sizes.values()),
        "age": time,
        "threads": 10,
        "arenas": arenas,
        "classes": {name: {"resident": size, "swap": swapped.get(name, 0)} for name, size in sizes.items()},
        "swap": sum(swapped.values()),
        "hugetlb": more.pop("huge", 0) * MIB,
        "malloc": {"heap": {"free": free[0] * MIB}, "arenas": {"free": free[1] * MIB}} if free else {"heap": None},
        "jvm": None,
        "tunables": {},
        "not_readable": [],
        **more,
    }
    return {"name": "a.service", "time": time, "boot_id": "b", "problem": None, "processes": [process]}


def judged(*samples: dict[str, Any]) -> rules.Triaged:
    return rules.judge(memory_growth.growth(parse(one) for one in samples), "app1")


def nmt(other: int) -> dict[str, Any]:
    return {"nmt": {"categories": {"Other": other * MIB}}}


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({}, {"java_heap": 90}, "java-heap"),
        ({}, {"metaspace": 90, "glibc_arenas": 50}, "metaspace"),
        ({}, {"thread_stacks": 90, "threads": 90}, "threads"),
        ({}, {"thread_stacks": 90}, "stacks"),
        ({}, {"mapped_files": 90}, "mapped-files"),
        ({}, {"shared_memory": 90}, "shared-memory"),
        ({}, {"huge": 80}, "huge-pages"),
        # What is swapped out is held, as what is resident.
        ({}, {"glibc_arenas": 2, "swapped": {"glibc-arenas": 90}}, "native-growth"),
        ({"glibc_arenas": 90}, {"glibc_arenas": 30, "swapped": {"glibc-arenas": 60}}, "swapped"),
        ({"swapped": {"unknown": 60}}, {"unknown": 70}, "not-growing"),
        ({"jvm": nmt(1)}, {"jvm": nmt(60), "malloc_mmapped": 90}, "direct-buffers"),
        ({"jvm": nmt(1)}, {"jvm": nmt(20), "malloc_mmapped": 90}, "native-growth"),
        ({"jvm": {}}, {"jvm": {}, "glibc_arenas": 90}, "native-growth"),
        ({"other_malloc": 10}, {"other_malloc": 90}, "native-growth"),
        ({"arenas": 16}, {"arenas": 16, "glibc_arenas": 90, "free": (0, 70)}, "malloc-arenas"),
        ({"arenas": 1}, {"arenas": 1, "glibc_arenas": 90, "free": (0, 70)}, "fragmentation"),
        ({}, {"malloc_heap": 90, "free": (70, 0)}, "fragmentation"),
        ({"malloc_heap": 90, "free": (70, 0)}, {"malloc_heap": 90, "free": (70, 0)}, "fragmentation"),
        (
            {"arenas": 16, "glibc_arenas": 90, "free": (0, 70)},
            {"arenas": 16, "glibc_arenas": 90, "free": (0, 70)},
            "malloc-arenas",
        ),
        # A leak in a heap with holes is a leak.
        ({"malloc_heap": 90, "free": (70, 0)}, {"malloc_heap": 190, "free": (70, 0)}, "native-growth"),
        ({"free": None}, {"free": None, "malloc_heap": 90}, "cannot-tell"),
        ({}, {"unknown": 90}, "other-memory"),
        ({}, {"jit": 90}, "cannot-tell"),
        # 4.5 MiB that malloc keeps free explain nothing.
        ({}, {"malloc_heap": 14, "free": (4, 0)}, "cannot-tell"),
        # A young JVM fills its heap while native memory leaks beside it.
        ({"jvm": {}}, {"jvm": {}, "java_heap": 300, "glibc_arenas": 60}, "native-growth"),
        ({"jvm": {}}, {"jvm": {}, "java_heap": 300, "glibc_arenas": 20}, "java-heap"),
        ({}, {}, "not-growing"),
        ({"java_heap": 90}, {}, "not-growing"),
    ],
)
def test_what_grows_decides(first: dict[str, Any], second: dict[str, Any], verdict: str) -> None:
    found = judged(sample(100, **first), sample(700, **second))
    assert found.diagnosis.value == verdict, found
    assert "{" not in found.next_step.replace('{"offheap_units"', "")


@pytest.mark.parametrize(
    ("exe", "named"),
    [
        ("/usr/bin/java", '{"name": "a.service", "agent_settings": {"executable": "/usr/bin/java"}}'),
        ("/tmp/x'; reboot; '", '"a.service"'),
        ('/tmp/x"]}', '"a.service"'),
        (7, '"a.service"'),
    ],
)
def test_of_several_processes_the_one_that_grows_is_profiled(exe: object, named: str) -> None:
    """A host chooses the path, and somebody will paste it into a shell."""

    def two(time: float, **grown: Any) -> dict[str, Any]:
        wrapper, child = sample(time, exe="/usr/bin/wrapper"), sample(time, exe=exe, pid=51, **grown)
        return {**wrapper, "processes": [*wrapper["processes"], *child["processes"]]}

    found = judged(two(100), two(700, glibc_arenas=90))
    assert found.next_step.endswith(f"-l app1 -e '{{\"offheap_units\": [{named}]}}'")


def test_the_next_command_has_the_inventory_of_this_one() -> None:
    looks = [sample(100), sample(700, other_malloc=90)]
    growth = memory_growth.growth(map(parse, looks))
    step = rules.judge(growth, "app1", ["inventory", "more hosts"]).next_step
    assert "ansible-playbook -i inventory -i 'more hosts' offheap.profiler.enable_profiling -l app1 -e" in step


@pytest.mark.parametrize(
    ("looks", "verdict", "command"),
    [
        ([sample(100)], "cannot-tell", "triage -l app1 -e '{}' -e ansible_become=true"),
        ([sample(100), sample(700)], "not-growing", "triage -l app1 -e '{}' -e triage_watch=0"),
        ([sample(100), sample(700, jit=90)], "cannot-tell", "triage -l app1 -e '{}' -e triage_watch=1h"),
        (
            [sample(100, free=None), sample(700, free=None, malloc_heap=90)],
            "cannot-tell",
            "triage -l app1 -e '{}' -e ansible_become=true",
        ),
        ([sample(100), sample(700, malloc_heap=90)], "native-growth", "enable_profiling -l app1 -e '{}'"),
    ],
)
def test_the_next_step_can_be_pasted(looks: list[dict[str, Any]], verdict: str, command: str) -> None:
    name = r"a\x2db.service"
    growth = memory_growth.growth(parse({**look, "name": name}) for look in looks)
    found = rules.judge(growth, "app1", ["my hosts"])
    assert found.diagnosis.value == verdict
    units = json.dumps({"offheap_units": [name]})
    expected = command.format(units)
    assert found.next_step.endswith(f": ansible-playbook -i 'my hosts' offheap.profiler.{expected}")
    words = shlex.split(found.next_step)
    assert json.loads(words[words.index("-e") + 1]) == {"offheap_units": [name]}


def test_a_jvm_gives_back_what_malloc_keeps_without_a_restart() -> None:
    kept: dict[str, Any] = {"malloc_heap": 90, "free": (70, 0)}
    trim = "jcmd 50 System.trim_native_heap, and ansible-playbook offheap.profiler.triage -l app1 -e"
    assert trim in judged(sample(0, jvm={}, **kept), sample(600, jvm={}, **kept)).next_step
    assert "jcmd" not in judged(sample(0, **kept), sample(600, **kept)).next_step


def test_direct_buffers_are_not_ruled_out_without_memory_tracking() -> None:
    found = judged(sample(100, jvm={}), sample(700, jvm={}, glibc_arenas=90))
    assert "direct buffers are not ruled out" in found.reason
    assert "direct" not in judged(sample(100), sample(700, glibc_arenas=90)).reason


def test_a_java_heap_is_told_with_what_the_last_collection_left() -> None:
    found = judged(sample(100), sample(700, java_heap=90, jvm={"heap_after_collection": 20 * MIB}))
    assert found.reason.endswith("20.0 MiB of the heap in use after the last collection")


def test_one_look_and_another_process_tell_nothing() -> None:
    assert "one look" in judged(sample(100)).reason
    other = sample(700, java_heap=90, start=8)
    assert "started between" in judged(sample(100), other).reason
    assert judged(sample(100), {**sample(700), "problem": "gone", "processes": []}).reason == "gone"


def test_a_clock_that_was_set_back_between_the_looks_turns_nothing_round() -> None:
    """As the host's clock has it, the second look was before the first."""
    found = judged(sample(3600, age=1000), {**sample(0, age=1600, malloc_heap=90), "time": 600})
    assert found.diagnosis.value == "native-growth"
    assert found.reason.startswith("in 10 min RSS +480.0 MiB/h ")


def test_a_host_that_came_up_with_a_clock_that_is_behind_is_judged_by_what_it_does_now(tmp_path: Path) -> None:
    """Before its restart it leaked, and its memory went to the kernel; now neither does. It says that is earlier."""
    for hour, boot, time in ((1, "b", 90_000), (2, "b", 93_600), (3, "c", 600), (4, "c", 4_200)):
        taken = 3 if boot == "c" else hour
        look = on_host(time, boot, available=4000 - 900 * taken, slab=100 + 900 * taken)
        for name, size in (("a.service", 100 * taken), ("b.service", 10)):
            unit = {**sample(time, age=600 + 3600.0 * hour, malloc_heap=size), "name": name}
            kept = snapshots.keep(tmp_path / name, "app1", [{**look, **unit, "boot_id": boot}])
            os.utime(kept, (3600 * hour, 3600 * hour))
    for name in ("a.service", "b.service"):
        found = findings.findings(tmp_path / name, [], [], print)
        assert [(one.growth.name, one.triaged.diagnosis.value) for one in found] == [(name, "not-growing")]
        assert found[0].time == 4200


def test_a_map_that_is_not_readable_is_named() -> None:
    first, second = (sample(t, classes=None, not_readable=["its memory map: denied"]) for t in (100, 700))
    found = judged(first, second)
    assert (found.diagnosis.value, found.reason) == ("cannot-tell", "not readable: its memory map: denied")


def test_the_growth_of_a_young_process_does_not_count_later() -> None:
    young = sample(10, java_heap=10)
    assert judged(young, sample(700, java_heap=90)).diagnosis.value == "java-heap"
    assert judged(young, sample(700, java_heap=90), sample(4000, java_heap=90)).diagnosis.value == "not-growing"


def test_the_process_that_grows_most_is_judged() -> None:
    first, second = sample(100), sample(700)
    first["processes"] += sample(100, pid=51, java_heap=500)["processes"] + sample(100, pid=52)["processes"]
    second["processes"] += (
        sample(700, pid=51, java_heap=500)["processes"] + sample(700, pid=52, unknown=90, metaspace=200)["processes"]
    )
    growth = memory_growth.growth(map(parse, (first, second)))
    assert growth.process and growth.process.pid == 52
    found = rules.judge(growth, "app1")
    assert found.diagnosis.value == "metaspace"
    assert "that is process 52; all 3 RSS +1.6 GiB/h" in found.reason


def test_what_is_profiled_already_is_not_to_be_profiled() -> None:
    def next_step(**more: Any) -> str:
        return judged(sample(100, **more), sample(700, malloc_heap=90, **more)).next_step

    assert "offheap.profiler.enable_profiling -l app1" in next_step()
    told = next_step(profiled=True)
    assert "enable_profiling" not in told
    assert "offheap.profiler.collect_profiles -l app1, and then offheap.profiler.report_leaks" in told


def test_a_container_has_its_own_next_steps() -> None:
    def told(**grown: Any) -> rules.Triaged:
        looks = [
            {**sample(time, **more), "name": "container shop/cart-0/cart"} for time, more in ((100, {}), (700, grown))
        ]
        return rules.judge(memory_growth.growth(map(parse, looks)), "node1")

    assert told(malloc_heap=90).diagnosis.value == "native-growth"
    steps = [told(**grown).next_step for grown in ({"malloc_heap": 90}, {"glibc_arenas": 90}, {"unknown": 90}, {})]
    assert "fab pod" in steps[0]
    assert not any("enable_profiling" in step or "offheap_units" in step for step in steps)


def test_a_container_is_looked_at_again_by_its_name() -> None:
    look = {**sample(100), "name": "container shop/cart-*"}
    found = rules.judge(memory_growth.growth(map(parse, [look])), "node1")
    assert found.diagnosis.value == "cannot-tell"
    assert """triage -l node1 -e '{"offheap_containers": ["shop/cart-*"]}'""" in found.next_step


def test_agents_and_earlier_deaths_are_noted() -> None:
    crashes = {
        "error_files": [{"reason": "out-of-memory", "failed": 4096, "path": "/srv/hs_err_pid7.log"}],
        "core_dumps": [{"path": "/srv/core"}],
        "oom_kills": [{"name": "java", "anon": 2 * MIB}],
    }
    looks = [{**sample(time, agents=["agentlib:jdwp"]), "crashes": crashes} for time in (100, 700)]
    growth = memory_growth.growth(map(parse, looks))
    finding = findings.Finding("app1", growth, rules.judge(growth, "app1"))
    assert finding.data["notes"] == [
        "an agent in the JVM is a suspect: agentlib:jdwp",
        "earlier: out-of-memory for 4.0 KiB in /srv/hs_err_pid7.log",
        "earlier: core dump /srv/core",
        "earlier: OOM kill of java at 2.0 MiB",
    ]
    assert [line for _verdict, line in findings.table([finding])][-1] == f"    Note: {finding.notes[-1]}"


def test_it_says_how_long_what_the_limit_leaves_will_last() -> None:
    """120 MiB are held, and then 200 of a limit of 360."""
    looks = [sample(1000), sample(4600, other_malloc=90)]
    assert "its limit" not in judged(*looks).reason
    looks[1]["cgroup"] = {"limit": 360 * MIB}
    assert "; the 160.0 MiB that its limit leaves last 2 h (119 min to 2 h)" in judged(*looks).reason
    looks[1]["cgroup"] = {"limit": 360 * MIB, "current": 330 * MIB, "parts": {"files": 50 * MIB}}
    assert "; the 80.0 MiB that its limit leaves last 60 min" in judged(*looks).reason, "cached files are given back"
    looks[1]["cgroup"] = {"limit": 100 * MIB}
    assert "; the 0 B that its limit leaves last" in judged(*looks).reason
    looks = [sample(1000), {**sample(4600), "cgroup": {"limit": 360 * MIB}}]
    assert "its limit" not in judged(*looks).reason, "it does not grow"


def test_of_a_heap_that_is_swapped_out_all_counts_as_in_use() -> None:
    """40 MiB were free at the first look, and at the second nobody could tell."""
    first = sample(0, glibc_arenas=60, free=(0, 40))
    found = judged(first, sample(3600, free=None, glibc_arenas=20, swapped={"glibc-arenas": 80}))
    assert found.diagnosis.value == "native-growth" and "malloc in use +40.0 MiB/h" in found.reason
    assert found.reason.endswith("not known, since a part is swapped out")
    assert judged(first, sample(3600, free=None, glibc_arenas=100)).diagnosis.value == "cannot-tell"


def test_without_a_limit_it_is_what_the_host_has() -> None:
    looks = [sample(1000), {**sample(4600, other_malloc=90), "host": {"available": 40 * MIB}}]
    assert "; the 40.0 MiB that the host has available last 30 min" in judged(*looks).reason
    looks[1]["processes"][0]["swap"] = MIB
    assert "last" not in judged(*looks).reason, "swap takes what does not fit"


def test_what_is_swapped_out_is_told_beside_rss() -> None:
    reason = judged(sample(0), sample(3600, unknown=5, swapped={"unknown": 45})).reason
    rates = [text.partition(" ± ")[0] for text in reason.split("; ")]
    assert rates[:3] == ["in 60 min RSS -5.0 MiB/h", "swap +45.0 MiB/h", "other anonymous memory +40.0 MiB/h"]


def in_a_group(time: float, **beside: int) -> dict[str, Any]:
    """A look at a process that does not grow, with MiB in parts of its control group."""
    parts = {name.replace("_", "-"): size * MIB for name, size in beside.items()}
    return {**sample(time), "cgroup": {"limit": None, "parts": parts}}


@pytest.mark.parametrize(
    ("part", "verdict"),
    [
        ("files", "page-cache"),
        ("kernel", "kernel-memory"),
        ("sockets", "sockets"),
        ("shared_memory", "shared-memory"),
    ],
)
def test_memory_that_is_in_no_process(part: str, verdict: str) -> None:
    first = in_a_group(0, files=10, kernel=10, sockets=10, shared_memory=10)
    grown = {"files": 10, "kernel": 10, "sockets": 10, "shared_memory": 10, part: 40}
    found = judged(first, in_a_group(3600, **grown))
    assert found.diagnosis.value == verdict and "+30.0 MiB/h" in found.reason
    assert judged(first, in_a_group(3600, **{**grown, part: 13})).diagnosis.value == "not-growing", "that is noise"
    leaks = {**sample(3600, glibc_arenas=90), "cgroup": {"parts": {part.replace("_", "-"): 400 * MIB}}}
    assert judged(first, leaks).diagnosis.value == "native-growth", "what a process holds comes first"


def test_the_file_in_memory_that_grows_most_is_named() -> None:
    def file(path: object, mib: object) -> dict[str, object]:
        return {"path": path, "size": mib * MIB if isinstance(mib, int) else mib, "files": 1}

    first = {**in_a_group(0, shared_memory=10), "files_in_memory": [file("/dev/shm/old", 90), file("/dev/shm/q", 5)]}
    last = {
        **in_a_group(3600, shared_memory=60),
        "files_in_memory": [
            file("/dev/shm/old", 91),
            file("/dev/shm/q", 50),
            file("/dev/shm/\ud800", 400),
            file(3, "x"),
        ],
    }
    found = judged(first, last)
    assert found.diagnosis.value == "shared-memory"
    assert found.reason.endswith("; /dev/shm/q has grown by 45.0 MiB to 50.0 MiB")
    assert "has grown" not in judged(first, {**last, "files_in_memory": "none"}).reason


def test_without_a_memory_controller_its_files_in_memory_count() -> None:
    def look(time: float, mib: int) -> dict[str, Any]:
        return {**sample(time), "files_in_memory": [{"path": "/dev/shm/q", "size": mib * MIB}] if mib else []}

    found = judged(look(0, 0), look(3600, 40))
    assert found.diagnosis.value == "shared-memory" and "files in memory +40.0 MiB/h" in found.reason
    assert judged(look(0, 20), look(3600, 21)).diagnosis.value == "not-growing"


@pytest.mark.parametrize(("unwritten", "is_noted"), [(10, False), (29, False), (40, True)])
def test_what_was_never_written_of_huge_pages_is_noted(unwritten: int, is_noted: bool, tmp_path: Path) -> None:
    huge = {"held": 60 * MIB, "unwritten": unwritten * MIB, "error": 0}
    snapshots.keep(tmp_path, "app1", [sample(0, huge_pages=huge)])
    (found,) = findings.findings(tmp_path, [], [], lambda _text: None)
    assert [note for note in found.notes if "was never written" in note] == ([found.notes[0]] if is_noted else [])


def test_it_says_how_long_there_is_room_for_what_is_in_no_process() -> None:
    def found(part: str) -> str:
        last = in_a_group(3600, **{part: 40})
        last["cgroup"] |= {"limit": 200 * MIB, "current": 180 * MIB}
        last["cgroup"]["parts"].setdefault("files", 0)
        return judged(in_a_group(0, **{part: 10, "files": 0} | ({"files": 10} if part == "files" else {})), last).reason

    assert "; the 20.0 MiB that its limit leaves last 40 min (" in found("kernel")
    assert "its limit leaves" not in found("files")


def test_cached_files_hide_nothing() -> None:
    """They are given back when memory is short; what malloc keeps free is not."""
    idle: dict[str, Any] = {"malloc_heap": 90, "free": (70, 0)}
    looks = [{**sample(0, **idle), "cgroup": {"parts": {"files": 0}}}]
    looks.append({**sample(3600, **idle), "cgroup": {"parts": {"files": 400 * MIB}}})
    assert judged(*looks).diagnosis.value == "fragmentation"


@pytest.mark.parametrize(
    ("limit", "more", "verdict"),
    [
        (400, {}, "not-growing"),
        (360, {}, "does-not-fit"),
        (360, {"java_heap": 60}, "does-not-fit"),
        # A leak beside it is the graver of the two.
        (360, {"glibc_arenas": 60}, "native-growth"),
    ],
)
def test_a_heap_and_the_rest_have_to_fit_the_limit(limit: int, more: dict[str, Any], verdict: str) -> None:
    """110 MiB besides a heap of at most 256."""
    jvm = {"flags": {"MaxHeapSize": str(256 * MIB)}}
    found = judged(sample(0, jvm=jvm), {**sample(3600, jvm=jvm, **more), "cgroup": {"limit": limit * MIB}})
    assert found.diagnosis.value == verdict
    told = "a heap of up to 256.0 MiB and 110.0 MiB besides it are 6.0 MiB more than its limit; -Xmx250m would fit"
    assert (told in found.reason) == (verdict == "does-not-fit")
    enough = "so that both fit: systemctl set-property a.service MemoryMax=366M"
    assert found.next_step.endswith(enough) == (verdict == "does-not-fit")


HOST = {"total": 8000, "available": 4000, "processes": 1000, "slab": 100, "rest": 200, "shared-memory": 10}


def on_host(time: float, boot: str = "b", **now: int) -> dict[str, Any]:
    """A look at a host with these MiB."""
    sizes = {**HOST, **{name.replace("_", "-"): size for name, size in now.items()}}
    return {**sample(time), "boot_id": boot, "host": {name: size * MIB for name, size in sizes.items()}}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"available": 3800, "slab": 290}, "the kernel's own objects (slab) +190.0 MiB/h"),
        ({"available": 3800, "rest": 400, "slab": 110}, "memory that the kernel accounts to nothing +200.0 MiB/h"),
        ({"available": 3800, "processes": 1190}, "processes that were not looked at +190.0 MiB/h"),
        ({"available": 3800}, "no part explains it"),
        ({"available": 3950, "slab": 150}, ""),
        ({"available": 3800, "slab": 290, "boot": "c"}, ""),
        ({"available": 4100, "slab": 290}, ""),
    ],
)
def test_memory_of_a_host_that_no_unit_takes(now: dict[str, Any], told: str, tmp_path: Path) -> None:
    snapshots.keep(tmp_path, "app1", [on_host(0)])
    snapshots.keep(tmp_path, "app1", [on_host(3600, **now)])
    hosts = [one for one in findings.findings(tmp_path, [], [], print) if one.growth.name == host_growth.NAME]
    assert [one.triaged.diagnosis.value for one in hosts] == ["host"] * bool(told)
    if told:
        (found,) = hosts
        assert told in found.triaged.reason and "3.7 GiB that are left last 19 h (15 h " in found.triaged.reason
        assert found.data["growth_bytes_per_hour"] == 200 * MIB and found.data["rss"] is None
        assert 30 * MIB < found.data["growth_error"] < 50 * MIB


def test_a_unit_that_grows_explains_its_host(tmp_path: Path) -> None:
    snapshots.keep(tmp_path, "app1", [on_host(0)])
    snapshots.keep(tmp_path, "app1", [{**on_host(3600, available=3800, slab=290), **sample(3600, unknown=90)}])
    assert [one.growth.name for one in findings.findings(tmp_path, [], [], print)] == ["a.service"]


def test_a_unit_that_grows_explains_its_host_also_where_others_are_asked_for(tmp_path: Path) -> None:
    for time, unknown in ((0, 10), (3600, 210)):
        other = {**on_host(time, available=4010 - unknown, processes=990 + unknown), "name": "b.service"}
        snapshots.keep(tmp_path, "app1", [sample(time, unknown=unknown), other])
    both = [one.growth.name for one in findings.findings(tmp_path, [], [], print)]
    one = [one.growth.name for one in findings.findings(tmp_path, ["b.service"], [], print)]
    assert (both, one) == (["a.service", "b.service"], ["b.service"])


@pytest.mark.parametrize(
    ("exe", "reason", "step"),
    [
        ("/usr/bin/python3.11", "CPython's arenas", '-e \'{"profiled_service_runtime_with": ["objects"]}\''),
        ("/usr/bin/node", "V8's heap", "node inspect -p 50"),
        ("/usr/bin/node-22", "V8's heap", "node inspect -p 50"),
        ("/usr/sbin/php-fpm8.2", "PHP's memory manager", "memory_get_usage"),
        ("/opt/pythonic", "", "perf record -e syscalls:sys_enter_mmap -g -p 50"),
    ],
)
def test_a_heap_of_a_runtime_has_its_name(exe: str, reason: str, step: str) -> None:
    found = judged(sample(100, exe=exe), sample(700, exe=exe, unknown=90))
    assert found.diagnosis.value == "other-memory" and reason in found.reason and step in found.next_step
    assert ("its runtime keeps there" in found.reason) == bool(reason)
    leaks = judged(sample(100, exe=exe), sample(700, exe=exe, glibc_arenas=90))
    assert "runtime" not in leaks.reason + leaks.next_step


def test_rates_are_per_hour_with_their_interval() -> None:
    """Of two looks the scatter is assumed: what matters, 1 MiB of 170, is what chance might do in one case of 200."""
    growth = memory_growth.growth(map(parse, (sample(0), sample(1800, java_heap=60))))
    assert rules.per_hour(growth, growth.growth) == "+100.0 MiB/h ± 1015.6 KiB"
    assert growth.growth.chance == pytest.approx(MIB)


def test_the_scatter_of_five_looks_decides() -> None:
    """A service that breathes by 20 MiB and does not grow; the same that grows by 200; and one jump that is over."""
    breathing = [30, 50, 31, 52, 40]
    times = [600 * at for at in range(2, 7)]
    stays = [sample(time, unknown=size) for time, size in zip(times, breathing, strict=True)]
    assert judged(*stays).diagnosis.value == "not-growing"
    assert judged(*stays[:2]).diagnosis.value == "other-memory", "two say nothing of scatter"
    grows = [sample(time, unknown=size + time // 12) for time, size in zip(times, breathing, strict=True)]
    found = judged(*grows)
    assert found.diagnosis.value == "other-memory" and "other anonymous memory +313.2 MiB/h ± 67.5 MiB" in found.reason
    jump = [sample(time, unknown=size) for time, size in zip(times, (10, 10, 110, 110, 110), strict=True)]
    found = judged(*jump)
    assert found.diagnosis.value == "cannot-tell" and found.reason.endswith(
        "it has grown in a step, or rises and falls"
    )


def test_what_has_filled_up_or_begun_to_grow_is_told_as_it_is_now() -> None:
    def history(*sizes: int) -> rules.Triaged:
        return judged(*(sample(1000 + 600 * at, unknown=size) for at, size in enumerate(sizes)))

    assert history(10, 40, 80, 100, 100, 101, 100, 101, 100, 101, 100, 100).diagnosis.value == "not-growing"
    late = history(10, 11, 10, 10, 11, 10, 20, 30, 41, 50, 60, 70)
    assert late.diagnosis.value == "other-memory" and "in 50 min RSS +72" not in late.reason
    assert "in 50 min RSS +60" in late.reason, late.reason


def test_looks_that_lie_no_time_apart_are_one() -> None:
    assert "started between the looks" in judged(sample(700), sample(700.5)).reason
    looks = [sample(600 * at) for at in range(10)] + [sample(6000, unknown=90) for _ in range(10)]
    assert judged(*looks).reason.endswith("it has grown in a step, or rises and falls")


def test_the_document_has_every_verdict_and_each_rule_a_source() -> None:
    text = (ROOT / "docs" / "triage.md").read_text()
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", text[text.index("## The rules") :], re.MULTILINE)
    told = [name for row in rows for name in re.findall("`(.*?)`", row)]
    assert told == [*(rule.diagnosis.value for rule in rules.RULES), "host"]
    assert all(rule.source and rule.next_step for rule in rules.RULES)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_a_host_may_send_anything(data: st.DataObject) -> None:
    """A good sample with junk in one place is taken, or refused with a SampleError."""
    whole = sample(100, jvm=nmt(5))
    process = whole["processes"][0]
    whole["crashes"] = {"error_files": [{"failed": 1}], "oom_kills": [{}]}
    whole |= {"cgroup": {"limit": 9, "parts": {"files": 5}}, "host": {"total": 9, "available": 5, "slab": 1}}
    process["jvm"]["flags"] = {"MaxHeapSize": "7"}
    inside = [whole["crashes"], whole["cgroup"], whole["cgroup"]["parts"], whole["host"], process["jvm"]["flags"]]
    at = data.draw(st.sampled_from([whole, *inside, process, process["classes"], process["malloc"], process["jvm"]]))
    at[data.draw(st.sampled_from(sorted(at)))] = data.draw(JUNK)
    with contextlib.suppress(SampleError):
        judged(whole, sample(700))
        host_growth.judge([parse(whole), parse(on_host(700))], "app1")


def test_looks_are_kept_and_told_by_host(tmp_path: Path) -> None:
    for host in ("app1", "../app2"):
        snapshots.keep(tmp_path / "t", host, [sample(100)])
        snapshots.keep(tmp_path / "t", host, [sample(700, java_heap=90)])
    assert [path.parent.parent for path in tmp_path.rglob("*.json")] == [tmp_path / "t"] * 4
    (tmp_path / "t" / "app1" / "broken.json").write_text("{")
    (tmp_path / "t" / "app1" / "other.json").write_text(json.dumps({"host": "app1", "samples": [{"name": "x\x1b[2J"}]}))
    warnings: list[str] = []
    found = findings.findings(tmp_path / "t", [], [], warnings.append)
    assert [(finding.host, finding.triaged.diagnosis.value) for finding in found] == [
        ("../app2", "java-heap"),
        ("app1", "java-heap"),
    ]
    assert len(warnings) == 2
    lines = [line for _verdict, line in findings.table(found)]
    assert lines[1].split()[:8] == ["a.service", "../app2", "java-heap", "200.0", "MiB", "+480.0", "MiB/h", "±"]
    assert not any("not looked at since" in line for line in lines)
    a_host_whose_clock_is_ahead = snapshots.keep(tmp_path / "t", "app1", [sample(5000, java_heap=90)])
    found = findings.findings(tmp_path / "t", [], [], warnings.append)
    assert [finding.notes for finding in found] == [[], []]
    later = a_host_whose_clock_is_ahead.stat().st_mtime + 3600
    os.utime(a_host_whose_clock_is_ahead, (later, later))
    old, new = findings.findings(tmp_path / "t", [], [], warnings.append)
    assert old.notes == ["this is of 1970-01-01 00:11:40 UTC, and was not looked at since"] and new.notes == []
    assert (old.data["time"], new.data["time"]) == (700, 5000)
    assert findings.findings(tmp_path / "t", ["b.service"], [], warnings.append) == []
    assert len(findings.findings(tmp_path / "t", [], ["app1"], warnings.append)) == 1
