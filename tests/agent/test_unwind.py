# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Stacks: through a JVM's compiled code, on odd stacks, and where an allocation hook must not wait."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import hotspot_attach
from ansible_collections.offheap.profiler.plugins.module_utils.spool import dump
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import Places, open_reader
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import heap_v2
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols import perf_map
from ansible_collections.offheap.profiler.tests.agent import builds
from ansible_collections.offheap.profiler.tests.agent.builds import CROSS_GCC, EMULATOR
from ansible_collections.offheap.profiler.tests.agent.conftest import (
    FOREIGN,
    PROGRAMS,
    compiled,
    driver_sources,
    service_program,
)
from ansible_collections.offheap.profiler.tests.agent.service import Service, wait_for
from ansible_collections.offheap.profiler.tests.unit.strategies import go_program

Start = Callable[..., Service]
Stack = tuple[tuple[str, ...], int]

DEFAULT_JAVA = Path(shutil.which("java") or "java").resolve()
# whatever else is installed here
JAVAS = sorted({DEFAULT_JAVA, *(path.resolve() for path in Path("/usr/lib/jvm").glob("*/bin/java"))})


def read_stacks(path: Path, code: perf_map.PerfMap | None = None) -> list[Stack]:
    """Stacks of a dump, by bytes; a frame is the name of its mapping's file, of JIT code the perf map's name."""
    lines = path.read_text().splitlines()
    border = lines.index("MAPPED_LIBRARIES:")
    mappings = []
    for line in lines[border + 1 :]:
        fields = line.split(None, 5)
        start, end = (int(word, 16) for word in fields[0].split("-"))
        if "x" in fields[1]:
            mappings.append((start, end, os.path.basename(fields[5]) if len(fields) > 5 else ""))

    def names(address: int) -> list[str]:
        for start, end, file in mappings:
            if start <= address < end:
                return [file] if file else jit(address, True) or ["[jit]"]
        return jit(address, False) or ["[nowhere]"]

    def jit(address: int, executable: bool) -> list[str]:
        frames = code.frames(address - 1, executable) if code else ()
        return [frame.signature for frame in frames]

    found: list[Stack] = []
    frames: tuple[str, ...] = ()
    for line in lines[:border]:
        if line.startswith("@"):
            frames = tuple(name for word in line.split()[1:] for name in names(int(word, 16)))
        elif line.startswith("  t*:") and frames:
            found.append((frames, int(line.split()[2])))
    return sorted(found, key=lambda stack: -stack[1])


def share(stacks: list[Stack], wanted: Callable[[tuple[str, ...]], bool]) -> float:
    total = sum(size for _frames, size in stacks)
    return sum(size for frames, size in stacks if wanted(frames)) / total


@pytest.fixture
def jvm(start: Start, java_classes: Path) -> Callable[..., Service]:
    def run(*options: str, java: Path = DEFAULT_JAVA, **settings: object) -> Service:
        arguments = ("-Xmx128m", *options, "-cp", str(java_classes), "LeakingInflater", "20")
        return start(java, *arguments, **{"conf": "lg_prof_sample:16", "start_delay": 1, **settings})

    return run


def dump_with_names(service: Service) -> list[Stack]:
    service.wait_until_active()
    time.sleep(3)  # by now it is compiled
    service.ask("reset")
    before = service.ask("status")["unwinder"]["walks"]
    wait_for("samples", lambda: service.ask("status")["unwinder"]["walks"] > before + 1500, 40)
    text = io.BytesIO()
    path = Path(service.ask("dump")["path"])
    with path.open("rb") as stream:
        addresses = dump.addresses(stream.fileno(), path.stat().st_size)
    hotspot_attach.perf_map(hotspot_attach.look(service.pid), text, addresses=addresses)
    return read_stacks(path, perf_map.parse(text.getvalue()))


# Leaf first, and all of them: what the compiler has put into its caller, and what is interpreted still
JAVA_CALLS = (
    "int java.util.zip.InflaterInputStream.read(byte[], int, int)",
    "int java.util.zip.GZIPInputStream.read(byte[], int, int)",
    "int java.io.FilterInputStream.read(byte[])",
    "void LeakingInflater.serveAsset(byte[])",
    "void LeakingInflater.handleRequest(byte[])",
    "void LeakingInflater.main(java.lang.String[])",
)


@pytest.mark.parametrize("options", [(), ("-Xint",)], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("java", JAVAS, ids=lambda java: java.parts[-3])
def test_java_frames(jvm: Callable[..., Service], java: Path, options: tuple[str, ...]) -> None:
    service = jvm("-XX:+PreserveFramePointer", *options, java=java)
    stacks = dump_with_names(service)
    top = next(frames for frames, _size in stacks if JAVA_CALLS[0] in frames)
    assert "libz" in " ".join(top)
    start = top.index(JAVA_CALLS[0])
    assert top[start : start + len(JAVA_CALLS)] == JAVA_CALLS
    assert "Interpreter" not in top
    assert "libjvm.so" in top[start:]
    assert top[-1] in ("libc.so.6", "libpthread.so.0")  # start_thread
    assert share(stacks, lambda frames: JAVA_CALLS[-1] in frames) > 0.95
    assert share(stacks, lambda frames: "[nowhere]" in frames) == 0
    status = service.ask("status")["unwinder"]
    assert status["continued"] > 0.8 * status["walks"] and status["unmapped"] < 0.01 * status["walks"]


def test_java_frames_with_the_builtin_unwinder_end_at_once(jvm: Callable[..., Service]) -> None:
    service = jvm("-XX:+PreserveFramePointer", unwinder="builtin")
    service.wait_until_active()

    def below_java() -> tuple[str, ...]:
        stacks = read_stacks(Path(service.ask("dump")["path"]))
        return next((frames for frames, _size in stacks if "libzip.so" in frames), ())

    frames = wait_for("samples", below_java, 40)
    assert frames[-1] == "[jit]" and frames[-2] == "libzip.so"
    assert service.ask("status")["unwinder"]["walks"] == 0


def test_without_frame_pointers_nothing_is_invented(jvm: Callable[..., Service]) -> None:
    stacks = dump_with_names(jvm("-XX:-PreserveFramePointer"))
    assert share(stacks, lambda frames: "[nowhere]" in frames) == 0
    assert share(stacks, lambda frames: any("java.util.zip." in frame for frame in frames)) > 0.9


def newest_python() -> str:
    """A CPython that names its frames (3.12 and up)."""
    candidates = [shutil.which(f"python3.{minor}") for minor in (14, 13, 12)]
    candidates += map(str, sorted(Path.home().glob(".pyenv/versions/3.1[2-9].*/bin/python3"), reverse=True))
    for candidate in filter(None, candidates):
        asked = [candidate, "-c", "import sys; print(hasattr(sys, 'activate_stack_trampoline'))"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == "True":
            return os.path.realpath(candidate)
    pytest.skip("no CPython 3.12 or later")


def has_whole_stacks(service: Service) -> bool:
    """Forgets all samples, waits for some, and tells whether none of them ended in code that is not known yet."""
    service.ask("reset")
    before = service.ask("status")["unwinder"]
    wait_for("samples", lambda: service.ask("status")["unwinder"]["walks"] > before["walks"] + 300, 40)
    return bool(service.ask("status")["unwinder"]["unmapped"] == before["unmapped"])


def dump_with_perf_file(service: Service, function: str, least: float) -> list[Stack]:
    """The stacks of a dump in which the function has its share. A runtime writes the names of new code somewhat later
    than it runs it, so the first dump may not have them."""
    written = Path(f"/tmp/perf-{service.pid}.map")

    def look() -> list[Stack] | None:
        path = Path(service.ask("dump")["path"])
        stacks = read_stacks(path, perf_map.parse(written.read_bytes()))
        return stacks if share(stacks, lambda frames: any(function in frame for frame in frames)) > least else None

    try:
        service.wait_until_active()
        wait_for(function, lambda: written.exists() and function in written.read_text(errors="replace"))
        wait_for("samples after the agent has found the code", lambda: has_whole_stacks(service), 40)
        found: list[Stack] = wait_for(f"a dump with {function} in {least:.0%} of its bytes", look, 40)
        return found
    finally:
        written.unlink(missing_ok=True)


def test_python_frames(start: Start) -> None:
    environment = {"PYTHONPERFSUPPORT": "1"}
    program = str(PROGRAMS / "leaking_inflater.py")
    service = start(newest_python(), program, start_delay=1, environment=environment)
    stacks = dump_with_perf_file(service, "py::serve_asset:", 0.9)
    assert "libz.so.1" in " ".join(stacks[0][0])
    assert share(stacks, lambda frames: "[nowhere]" in frames) == 0


def test_node_frames(start: Start) -> None:
    node = shutil.which("node")
    if not node:
        pytest.skip("no node")
    environment = {"NODE_OPTIONS": "--perf-basic-prof-only-functions --interpreted-frames-native-stack"}
    program = str(PROGRAMS / "leaking_inflater.js")
    # Which of two functions is optimized first decides whether one is inlined, and then has no name of its own.
    service = start(os.path.realpath(node), "--no-turbo-inlining", program, start_delay=1, environment=environment)
    stacks = dump_with_perf_file(service, "serveAsset", 0.5)
    named = [frames for frames, _size in stacks if any("serveAsset" in frame for frame in frames)]
    assert any("processTimers" in frame for frame in named[0])
    assert share(stacks, lambda frames: "[nowhere]" in frames) == 0


def test_a_thread_that_asks_for_its_stack(start: Start, workload: Path) -> None:
    """pthread_getattr_np allocates while it holds the thread's lock, and each allocation is sampled here."""
    status, output = start(workload, "attributes", "1.5", conf="lg_prof_sample:0").result()
    assert status == 0 and int(output.split()[1]) > 100


@pytest.mark.skipif(FOREIGN, reason="its unwinder is this machine's")
def test_the_unwinder_that_allocates_while_it_holds_its_lock(start: Start) -> None:
    """For code that the program makes and registers, as LLVM's JIT does, also that of PostgreSQL."""
    program = service_program("registered")
    service = start(program, conf="lg_prof_sample:0", popen={"stdin": subprocess.PIPE})
    service.wait_until_active()
    assert service.do("more") == service.do("more") == "done"
    stacks = read_stacks(Path(service.ask("dump")["path"]))
    assert any("libgcc_s.so.1" in names and names[-1] == "registered" for names, _size in stacks)


def test_signal_stacks_and_fibers(start: Start, workload: Path) -> None:
    service = start(workload, "stacks", "6", conf="lg_prof_sample:10")
    wait_for("samples", lambda: service.ask("status")["unwinder"]["walks"] > 1000)
    stacks = read_stacks(Path(service.ask("dump")["path"]))
    assert all("[nowhere]" not in frames for frames, _size in stacks)
    assert service.result()[0] == 0


@pytest.mark.skipif(FOREIGN, reason="musl has no such contexts")
def test_a_coroutine_that_was_called_by_nobody(start: Start) -> None:
    """libgcc would read the code at its caller's address, and die."""
    service = start(service_program("coroutine"), conf="lg_prof_sample:0", popen={"stdin": subprocess.PIPE})
    service.wait_until_active()
    before = int(service.do(""))
    wait_for("more", lambda: int(service.do("")) > before + 20)
    stacks = read_stacks(Path(service.ask("dump")["path"]))
    assert ("coroutine", "coroutine") in [names[-2:] for names, _size in stacks]


def test_the_agents_own_thread_is_not_in_the_profile(start: Start, workload: Path) -> None:
    service = start(workload, "leak", "30", conf="lg_prof_sample:0")
    service.wait_until_active()
    for _number in range(5):
        service.ask("status")
        path = Path(service.ask("dump")["path"])
    assert heap_v2.parse(path.read_bytes(), path.name)
    for frames, _size in read_stacks(path):
        # The hook leaves its own frame out; whatever else of the agent is there would be an allocation of its own.
        assert "liboffheap.so" not in frames


@pytest.mark.parametrize("unwinder", ["hybrid", "fp"])
def test_stacks_are_the_calls_that_were_made(tmp_path: Path, unwinder: str) -> None:
    run_driver(compiled("driver", driver_sources(), "-O2"), tmp_path, [], unwinder)


@pytest.mark.parametrize("unwinder", ["hybrid", "fp"])
def test_stacks_on_aarch64(tmp_path: Path, unwinder: str) -> None:
    if not shutil.which(CROSS_GCC):
        pytest.skip("no aarch64-linux-gnu-gcc")
    program = compiled("driver", driver_sources(), "-O2", compiler=CROSS_GCC)
    builds.agent(CROSS_GCC)
    if not shutil.which(EMULATOR[0]):
        pytest.skip("compiled; no qemu-aarch64 to run it")
    run_driver(program, tmp_path, EMULATOR, unwinder)


def run_driver(program: Path, directory: Path, emulator: list[str], unwinder: str) -> None:
    environment = {
        "OFFHEAP_EXECUTABLE": str(program),
        "OFFHEAP_SOCKET_DIR": str(directory),
        "OFFHEAP_START_DELAY": "0",
        "OFFHEAP_UNWINDER": unwinder,
        "FAKE_PREFIX": f"{directory}/jeprof",
    }
    command = [*emulator, str(program), "1.5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.split()
    assert words[2:] == ["wrong", "0"] and int(words[1]) > 500


def test_go_that_calls_c(start: Start, tmp_path: Path) -> None:
    """The stack changes there, from the goroutine's to the thread's."""
    (tmp_path / "leak.go").write_text((PROGRAMS / "cgo_leak.go").read_text())
    go_program.go(tmp_path, "build", "-o", "leak", "leak.go", CGO_ENABLED="1")
    service = start(tmp_path / "leak", start_delay=1, conf="lg_prof_sample:12")
    wait_for("samples", lambda: service.ask("status")["unwinder"]["walks"] > 100)
    path = Path(service.ask("dump")["path"])
    with open_reader([path], Places()) as reader:
        samples = reader.read(path).samples
    stacks = [[frame.function for frame in stack] for stack in samples.each_stack_of_frames()]
    ways = [stack[stack.index("main.keepName") :] for stack in stacks if "main.keepName" in stack]
    assert {tuple(name for name in way if name.startswith("main.")) for way in ways} == {
        ("main.keepName", "main.serve", "main.main"),
        ("main.keepName", "main.handle"),
    }
    assert all(way[-1] == "runtime.goexit.abi0" or way[-1].startswith("runtime.") for way in ways), ways
