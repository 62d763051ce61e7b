# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who holds what lives: each way to hold a block, or to lose it, is told for what it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.tests.agent.builds import BUILD, SOURCES
from ansible_collections.offheap.profiler.tests.agent.conftest import EMULATED, PROGRAMS, compiled
from ansible_collections.offheap.profiler.tests.agent.service import UNIT, Service, wait_for

Start = Callable[..., Service]
CASES = ("lost_", "kept_", "half_")


def built(*options: str, name: str = "holders") -> Path:
    """The program in C++."""
    if EMULATED:
        pytest.skip("an emulated process sees the emulator's memory")
    source, target = PROGRAMS / "holders.cpp", BUILD / "gcc" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        flags = ["-std=c++17", "-g", "-O2", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror"]
        made = target.with_suffix(f".{os.getpid()}")
        subprocess.run(["g++", *flags, *options, "-o", str(made), str(source), "-pthread", "-ldl"], check=True)
        made.replace(target)
    return target


class Names:
    """Functions and variables of a file, by their addresses in it."""

    def __init__(self, path: Path, *options: str) -> None:
        said = subprocess.run(["nm", "-CS", *options, str(path)], capture_output=True, text=True, check=True).stdout
        rows = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) \w (\w[^(\n]*)", said, re.MULTILINE)
        self.rows = [(int(start, 16), int(size, 16), name) for start, size, name in rows]

    def of(self, address: int) -> str:
        return next((name for start, size, name in self.rows if 0 <= address - start < size), "?")


class Look:
    """What the agent said, by case."""

    def __init__(self, service: Service, program: Path, **arguments: int) -> None:
        self.service = service
        self.answer = service.ask("holders", **arguments)
        self.file = Path(f"{self.answer['path']}.holders")
        self.told = json.loads(self.file.read_text())
        self.names = Names(program)
        base = re.search(rf"^([0-9a-f]+)-\w+ r--p 00000000 .*{program}$", Path(self.answer["path"]).read_text(), re.M)
        assert base
        self.base = int(base.group(1), 16)
        self.program = self.told["files"].index(str(program))

    def root(self, node: int) -> tuple[str, list[dict[str, Any]]]:
        """Kind and name of the root above a node, and the steps to it."""
        steps = []
        while (found := self.told["nodes"][node])["kind"] == "block":
            steps.append(found)
            assert found["parent"] < node
            node = found["parent"]
        name = found.get("name", "")
        if found.get("file") == self.program:
            name = self.names.of(found["at"]) if found["kind"] == "global" else "own"
        return f"{found['kind']} {name}".strip(), steps

    def cases(self, size: int = 150) -> dict[str, tuple[Counter[str], dict[str, Any]]]:
        """Of the stacks in each of the program's cases that allocate blocks of about this size or more: by root."""
        found: dict[str, tuple[Counter[str], dict[str, Any]]] = {}
        for stack in self.told["stacks"]:
            names = [self.names.of(frame - self.base) for frame in stack["frames"]]
            case = next((name for name in names if name.startswith(CASES)), None)
            if case and stack["looked"] and stack["living"] > 100 and stack["bytes"] / stack["living"] >= size:
                roots, _first = found.setdefault(case, (Counter(), stack))
                roots["lost"] += stack["lost"]
                for node, samples in stack["held"]:
                    roots[self.root(node)[0]] += samples
        return found

    def is_of_old_blocks(self) -> bool:
        """Whether hardly any block was too young to be looked at."""
        return all(stack["young"] <= 2 for stack in self.told["stacks"][:20])


def begin(service: Service) -> None:
    service.wait_until_active()
    assert service.do("") == "ready"


@pytest.fixture
def settled(start: Start) -> Iterator[Callable[..., Look]]:
    """Starts the program, and looks once all that it holds is old enough."""

    def run(*arguments: str, **settings: Any) -> Look:
        program = built()
        service = start(program, *arguments, conf="lg_prof_sample:10", popen={"stdin": subprocess.PIPE}, **settings)
        begin(service)

        def old() -> Look | None:
            look = Look(service, program)
            return look if look.is_of_old_blocks() else None

        look: Look = wait_for("what is held to be old", old)
        return look

    yield run


HELD = {
    "kept_by_unordered_map": "global session_cache",
    "kept_by_map": "global ordered",
    "kept_by_set": "global chosen",
    "kept_by_list": "global queue",
    "kept_by_vector": "global shapes",
    "kept_by_its_own_list": "global audit_head",
    "kept_by_its_own_tree": "global tree_root",
    "kept_by_an_intrusive_list": "global intrusive",
    "kept_by_an_array": "global array",
    "kept_by_a_large_array": "global large",
    "kept_by_a_static": "global kept_by_a_static",
    "kept_by_a_closure": "global callbacks",
    "kept_by_an_arena": "mapped",
    "kept_by_what_is_read_only": "mapped",
    "kept_by_marked_pointers": "global marked",
    "kept_below_a_fiber": "mapped",
    "kept_by_an_epoll": "epoll",
    "kept_by_a_thread_local": "thread_local own",
    "kept_by_a_stack": "stack worker-3",
}
LOST = (
    "lost_by_overwrite",
    "lost_by_return",
    "lost_by_exception",
    "lost_with_its_holder",
    "lost_in_a_cycle",
    "lost_but_in_freed_memory",
)


def test_each_way_to_hold_is_told(settled: Callable[..., Look]) -> None:
    look = settled()
    assert look.answer["holders"]["complete"] and look.told["blocks_known"]
    cases = look.cases()
    for case, root in HELD.items():
        roots, _stack = cases[case]
        assert roots["lost"] == 0, (case, roots)
        name, samples = Counter({name: n for name, n in roots.items() if root in name}).most_common(1)[0]
        # A word left in the rest of a container's node may lead into a list by a shorter way.
        assert samples >= 0.8 * roots.total() > 80, (case, name, roots)
    for case in LOST:
        roots, _stack = cases[case]
        assert roots["lost"] >= 0.97 * roots.total() > 100, (case, roots)
    roots, _stack = cases["half_lost"]
    assert 0.4 < roots["lost"] / roots.total() < 0.6 and "global halves" in roots


def test_a_list_of_any_length_is_one_step(settled: Callable[..., Look]) -> None:
    look = settled()
    _roots, stack = look.cases()["kept_by_its_own_list"]
    node, _samples = max(stack["held"], key=lambda held: held[1])
    _root, steps = look.root(node)
    assert len(steps) == 1 and steps[0]["many"] and steps[0]["size"] == 224


def test_a_type_is_its_table_of_virtual_functions(settled: Callable[..., Look]) -> None:
    look = settled()
    _roots, stack = look.cases()["kept_by_vector"]
    (kind,) = stack["types"]
    assert kind["file"] == look.program and kind["samples"] == min(stack["looked"], 200)
    assert look.names.of(kind["at"]) == "vtable for Circle"
    assert not look.cases()["kept_by_map"][1]["types"]


def test_in_a_process_that_never_rests(settled: Callable[..., Look]) -> None:
    look = settled("churn")
    assert look.told["room"], "a thread that has ended hides nothing"
    cases = look.cases()
    for case in HELD:
        roots, _stack = cases[case]
        assert roots["lost"] == 0, (case, roots)
    for case in LOST[:4]:
        roots, _stack = cases[case]
        assert roots["lost"] >= 0.9 * roots.total(), (case, roots)


def test_without_time_nothing_is_said_to_be_read(start: Start) -> None:
    program = built()
    service = start(program, conf="lg_prof_sample:10", popen={"stdin": subprocess.PIPE})
    begin(service)
    look = Look(service, program, milliseconds=10)
    assert look.told["in_time"] is False and look.answer["holders"]["complete"] is False


def test_it_goes_with_its_dump_and_holds_no_content(settled: Callable[..., Look]) -> None:
    look = settled()
    files = look.told["files"]
    texts = {value for value in _leaves(look.told) if isinstance(value, str)}
    known = {look.told["dump"], *files, "worker-3", "local-1", "holders", "", "[heap]", "[stack]"}
    assert texts <= known | {"global", "thread_local", "stack", "thread", "mapped", "epoll", "block"}, texts - known
    # The blocks are filled with ones, and begin with addresses of each other.
    filling = 0x0101010101010101
    mapped = [node for node in look.told["nodes"] if node["kind"] == "mapped" and "start" in node]
    ends = {node[key] for node in mapped for key in ("start", "end")}
    frames = {frame for stack in look.told["stacks"] for frame in stack["frames"]}
    numbers = {value for value in _leaves(look.told) if isinstance(value, int)} - ends - frames
    assert filling not in numbers
    assert max(numbers) < 1 << 40, "no address of the process"
    look.service.ask("schedule", keep_files=2)
    for _number in range(3):
        look.service.ask("holders")
    left = {path.name.removesuffix(".holders") for path in look.service.spool.glob("*.holders")}
    assert left <= {path.name for path in look.service.dumps()} and 1 <= len(left) <= 2


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield value


def test_without_a_book_there_is_nothing_to_look_for(start: Start, unpatched_jemalloc: Path, library: Path) -> None:
    """A jemalloc without our patches tells of no births: there is nothing to look for."""
    service = start(built(), preload=[unpatched_jemalloc, library], popen={"stdin": subprocess.PIPE})
    begin(service)
    with pytest.raises(client.AgentError, match="nothing is known of what lives"):
        service.ask("holders")
    with pytest.raises(client.AgentError, match="usage: holders"):
        service.ask("holders", seconds=3)


def test_under_another_allocator_what_is_lost_is_told_and_nothing_that_is_kept(
    start: Start, tmp_path: Path, library: Path
) -> None:
    """glibc cannot be asked for blocks, so what only blocks hold that nobody sampled is unclear."""
    program = built()
    settings = {
        "OFFHEAP_UNIT": UNIT,
        "OFFHEAP_SOCKET_DIR": f"{tmp_path}/run/{UNIT}",
        "OFFHEAP_PREFIX": f"{tmp_path}/spool/jeprof",
        "OFFHEAP_LG_SAMPLE": "10",
        "OFFHEAP_START_DELAY": "0",
        "OFFHEAP_MINIMUM_FREE": "0",
    }
    text = "\n".join(f"{name}={value}" for name, value in settings.items())
    service = start(program, "attach", str(library), text, preload=[], popen={"stdin": subprocess.PIPE})
    begin(service)

    def old() -> Look | None:
        look = Look(service, program)
        return look if all(stack["young"] <= 2 for stack in look.told["stacks"][:20]) else None

    look = wait_for("what is held to be old", old)
    assert look.told["blocks_known"] is False and look.answer["holders"]["complete"]
    cases = look.cases()
    for case in HELD:
        roots, _stack = cases[case]
        assert roots["lost"] == 0, (case, roots)
    for case in LOST[:2]:
        roots, _stack = cases[case]
        assert roots["lost"] >= 0.9 * roots.total() > 100, (case, roots)
    roots, _stack = cases["half_lost"]
    assert 0.4 < roots["lost"] / roots.total() < 0.6 and "global halves" in roots


def test_repeated_looks_leave_nothing_behind(start: Start) -> None:
    program = built()
    service = start(program, "churn", conf="lg_prof_sample:10", popen={"stdin": subprocess.PIPE}, keep_files=2)
    begin(service)

    def mappings() -> int:
        return Path(f"/proc/{service.pid}/maps").read_text().count("\n")

    with service.connected() as connection:
        written = connection.dump(str(service.spool), "holders")
    assert Path(f"{written.path}.holders").exists() and written.objects
    before, until = mappings(), time.monotonic() + 5
    while time.monotonic() < until:
        service.ask("holders")
    assert mappings() < before + 50
    assert len(list(service.spool.glob("*.holders"))) <= 2
    assert service.process.poll() is None and not service.ask("status")["problem"]


@pytest.mark.parametrize(("mode", "reads_all", "lost"), [("kept", False, 0), ("lost", True, 50), ("hidden", True, 0)])
def test_data_without_pointers_is_only_read_for_what_is_not_found(
    start: Start, mode: str, reads_all: bool, lost: int
) -> None:
    """62.5 MiB in 4,000 blocks."""
    if EMULATED:
        pytest.skip("an emulated process sees the emulator's memory")
    program = compiled("data", [PROGRAMS / "data.c"])
    service = start(program, mode, conf="lg_prof_sample:10", popen={"stdin": subprocess.PIPE})
    begin(service)

    def old() -> dict[str, Any] | None:
        answer = service.ask("holders")
        told: dict[str, Any] = answer["holders"]
        # The few blocks that nobody knows of were made last.
        stacks = json.loads(Path(f"{answer['path']}.holders").read_text())["stacks"]
        return told if told["samples"] > 3800 and not any(stack["young"] for stack in stacks) else None

    told = wait_for("what is held to be old", old)
    assert told["complete"]
    assert (told["read"] > 4000 * 16384) == reads_all and (told["read"] < 8 << 20) != reads_all
    assert 0.8 * lost <= told["lost"] <= lost
    file = json.loads(Path(f"{service.ask('holders')['path']}.holders").read_text())
    sizes = {size: (living, reached) for size, living, reached in file["sizes"]}
    assert sum(living for living, _reached in sizes.values()) <= file["living_blocks"]
    if mode == "lost":
        assert [stack["sizes"] for stack in file["stacks"] if stack["lost"] > 10] == [[5120]]
        others = [both for size, both in sizes.items() if size != 5120]
        assert sum(reached for _living, reached in others) > 0.5 * sum(living for living, _reached in others) > 0


def test_what_the_kernel_shows_to_nobody_may_hold_anything(start: Start) -> None:
    if EMULATED:
        pytest.skip("an emulated process sees the emulator's memory")
    service = start(compiled("data", [PROGRAMS / "data.c"]), "secret", popen={"stdin": subprocess.PIPE})
    service.wait_until_active()
    if service.do("") != "ready":
        pytest.skip("this kernel has no such memory (memfd_secret)")
    answer = service.ask("holders")
    assert not answer["holders"]["complete"]
    told = json.loads(Path(f"{answer['path']}.holders").read_text())
    assert told["in_time"] and told["room"] and told["failed"] == 4096


def test_the_epolls_of_a_service_with_many_files_are_let_alone(start: Start) -> None:
    """Nobody can wait for files while a list of them is written."""
    service = start(
        compiled("data", [PROGRAMS / "data.c"]), "many", conf="lg_prof_sample:10", popen={"stdin": subprocess.PIPE}
    )
    service.wait_until_active()
    if service.do("") != "ready":
        pytest.skip("no process may have so many files here (ulimit -Hn)")

    def look() -> dict[str, Any] | None:
        told: dict[str, Any] = service.ask("holders")["holders"]
        return told if told["lost"] else None

    assert not wait_for("something to be lost", look)["complete"]


def in_real_time() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_service_of_real_time_priority_keeps_half_of_the_processor(start: Start) -> None:
    """Our thread inherits it, and would give way to nobody."""
    if EMULATED:
        pytest.skip("an emulated process sees the emulator's memory")
    program = compiled("data", [PROGRAMS / "data.c"])
    popen = {"stdin": subprocess.PIPE, "preexec_fn": in_real_time}
    service = start(program, "lost", conf="lg_prof_sample:16", popen=popen)
    begin(service)
    (agent,) = [task for task in Path(f"/proc/{service.pid}/task").iterdir() if task.name != str(service.pid)]
    assert os.sched_getscheduler(int(agent.name)) == os.SCHED_FIFO
    looked = 0.0
    before = int((agent / "schedstat").read_text().split()[0])
    while looked < 0.2:
        looked += service.ask("holders")["holders"]["duration"]
    used = int((agent / "schedstat").read_text().split()[0]) - before
    assert looked > used / 1e9, "of which some were for the dumps"


@pytest.mark.soak_only
def test_a_thousand_looks_at_what_never_rests(start: Start) -> None:
    program = built()
    service = start(program, "churn", conf="lg_prof_sample:10", popen={"stdin": subprocess.PIPE}, keep_files=2)
    begin(service)
    for _number in range(1000):
        service.ask("holders")
    assert service.process.poll() is None and not service.ask("status")["problem"]
    roots, _stack = Look(service, program).cases()["kept_by_map"]
    assert roots["lost"] == 0


@pytest.mark.parametrize("collector", ["G1", "Z"])
def test_what_java_objects_own_is_held_by_the_java_heap(start: Start, java_classes: Path, collector: str) -> None:
    """Inflaters: a field of a Java object holds the stream, and that its state."""
    arguments = (f"-XX:+Use{collector}GC", "-Xmx256m", "-cp", str(java_classes), "LeakingInflater", "500")
    service = start(str(shutil.which("java")), *arguments, conf="lg_prof_sample:14")
    service.wait_until_active()

    def held() -> bool:
        told = json.loads(Path(f"{service.ask('holders')['path']}.holders").read_text())
        kinds: Counter[str] = Counter()
        for stack in told["stacks"]:
            for node, samples in stack["held"]:
                while (found := told["nodes"][node])["kind"] == "block":
                    node = found["parent"]
                kinds[found["kind"]] += samples
        return kinds["java_heap"] > 100

    wait_for("the Java heap to hold much", held, timeout=60)


KEEPING = """
input()
kept = [bytes(700 + number % 9) for number in range(3000)]
print("ready", flush=True)
input()
"""


def test_a_python_object_is_told_by_its_type(start: Start) -> None:
    python = Path(sys.executable).resolve()
    service = start(python, "-c", KEEPING, conf="lg_prof_sample:10", popen={"stdin": subprocess.PIPE})
    begin(service)

    def old() -> dict[str, Any] | None:
        told: dict[str, Any] = json.loads(Path(f"{service.ask('holders')['path']}.holders").read_text())
        most = max(told["stacks"], key=lambda stack: int(stack["bytes"]))
        return told if most["looked"] > 1000 else None

    told = wait_for("what is held to be old", old)
    stack = max(told["stacks"], key=lambda stack: int(stack["bytes"]))
    kind = max(stack["types"], key=lambda kind: int(kind["samples"]))
    assert kind["samples"] > 150
    assert Names(Path(told["files"][kind["file"]]), "-D").of(kind["at"]) == "PyBytes_Type"


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_clean(tmp_path: Path, sanitizer: str) -> None:
    below = "book clock descriptors feeder got hotspot json ledger loader mallctl maps probes sampler"
    own = "blocks epolls holders objects pages reach roots threads"
    parts = [SOURCES / f"{part}.c" for part in f"{below} {own}".split()]
    name = f"holders-{sanitizer.split(',')[0]}"
    program = compiled(name, [*parts, PROGRAMS / "holders_driver.c"], "-O1", f"-I{SOURCES}", f"-fsanitize={sanitizer}")
    target = tmp_path / "a.heap"
    done = subprocess.run([program, "4", target], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) >= 4
    assert json.loads(target.with_name("a.heap.holders").read_text())["blocks_known"]
