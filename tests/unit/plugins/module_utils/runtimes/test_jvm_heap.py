# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.offheap.profiler.plugins.module_utils.formats.jvm_memory import JvmMemory, JvmMemoryError
from ansible_collections.offheap.profiler.plugins.module_utils.formats.pack_request import Identity
from ansible_collections.offheap.profiler.plugins.module_utils.host import process_key, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import jvm_heap
from ansible_collections.offheap.profiler.plugins.module_utils.spool import steps
from ansible_collections.offheap.profiler.plugins.module_utils.spool.listing import ListedCapture, Listing
from ansible_collections.offheap.profiler.plugins.module_utils.spool.provenance import FoundProcess

JAVA = shutil.which("java")
JAVAS = sorted(
    {Path(JAVA).resolve(), *(path.resolve() for path in Path("/usr/lib/jvm").glob("*/bin/java"))} if JAVA else ()
)
needs_java = pytest.mark.skipif(not JAVA, reason="no JDK")
MIB = 1 << 20

# Holds 64 MiB (in pieces that G1 does not call humongous), says so, and waits.
HOLDER = """
public class Holder {
    public static void main(String[] arguments) throws Exception {
        byte[][] kept = new byte[256][];
        for (int i = 0; i < kept.length; i++) {
            kept[i] = new byte[1 << 18];
            java.util.Arrays.fill(kept[i], (byte) 1);
        }
        System.out.println("holding");
        System.in.read();
        System.out.println(kept.length);
    }
}
"""

# Answers of JDK 17 to GC.heap_info.
G1 = """ garbage-first heap   total 262144K, used 136410K [0x00000000f0000000, 0x0000000100000000)
  region size 1024K, 2 young (2048K), 1 survivors (1024K)
 Metaspace       used 9126K, committed 9344K, reserved 1114112K
  class space    used 1094K, committed 1216K, reserved 1048576K
"""
# And of JDK 25, with what it tells of metaspace.
G1_OF_JDK_25 = """\
garbage-first heap   total reserved 4194304K, committed 262144K, used 95130K [0x0000000700000000, 0x0000000800000000)
 region size 1024K, 11 young (11264K), 2 survivors (2048K)

Metaspace        used 9401K, committed 9536K, reserved 1114112K
 class space     used 1152K, committed 1216K, reserved 1048576K
"""
PARALLEL = """ PSYoungGen      total 76288K, used 29494K [0x00000000fab00000, 0x0000000100000000, 0x0000000100000000)
  eden space 65536K, 28% used [0x00000000fab00000,0x00000000fbd85860,0x00000000feb00000)
 ParOldGen       total 175104K, used 39952K [0x00000000f0000000, 0x00000000fab00000, 0x00000000fab00000)
  object space 175104K, 22% used [0x00000000f0000000,0x00000000f2704270,0x00000000fab00000)
 Metaspace       used 9150K, committed 9408K, reserved 1114112K
"""
ZGC = """ ZHeap           used 142M, capacity 256M, max capacity 256M
 Metaspace       used 9140K, committed 9408K, reserved 1114112K
"""
SHENANDOAH = """Shenandoah Heap
 256M max, 256M soft max, 256M committed, 68140K used
Reserved region:
 - [0x00000000f0000000, 0x0000000100000000)
Collection set:
 - map (vanilla): 0x0000000000013c00
"""


@pytest.mark.parametrize(
    ("answer", "used", "committed", "ranges"),
    [
        (G1, 136410 * 1024, 262144 * 1024, [(0xF0000000, 0x100000000)]),
        (G1_OF_JDK_25, 95130 * 1024, 262144 * 1024, [(0x700000000, 0x800000000)]),
        (
            PARALLEL,
            (29494 + 39952) * 1024,
            (76288 + 175104) * 1024,
            [(0xFAB00000, 0x100000000), (0xF0000000, 0xFAB00000)],
        ),
        (ZGC, 142 * MIB, 256 * MIB, []),
        (SHENANDOAH, 68140 * 1024, 256 * MIB, [(0xF0000000, 0x100000000)]),
        ("something else", None, None, []),
    ],
)
def test_heaps_of_all_collectors(
    answer: str, used: int | None, committed: int | None, ranges: list[tuple[int, int]]
) -> None:
    facts, found = jvm_heap.read_heap(answer)
    assert (facts["heap_used"], facts["heap_committed"], found) == (used, committed, ranges)


@pytest.mark.parametrize(("answer", "committed"), [(G1, 9344 * 1024), (G1_OF_JDK_25, 9536 * 1024)])
def test_metaspace(answer: str, committed: int) -> None:
    facts, _ranges = jvm_heap.read_heap(answer)
    assert facts["metaspace"] == committed


def test_what_is_mapped_counts_and_what_is_from_malloc_does_not() -> None:
    answer = """
Total: reserved=1714489KB, committed=344641KB
       malloc: 10081KB #63525
-                    Thread (reserved=21559KB, committed=943KB)
                            (thread #21)
                            (stack: reserved=21504KB, committed=888KB)
                            (malloc=32KB #130) (peak=40KB #134)
-                      Code (reserved=247869KB, committed=7729KB)
                            (malloc=181KB #1828) (at peak)
                            (mmap: reserved=247688KB, committed=7548KB)
-                        GC (reserved=42396KB, committed=42396KB)
                            (malloc=4472KB #2294) (at peak)
                            (mmap: reserved=37924KB, committed=37924KB, at peak)
-                    Symbol (reserved=2827KB, committed=2827KB)
                            (malloc=2467KB #50592) (at peak)
"""
    assert jvm_heap.read_tracking(answer) == {"Thread": 888 * 1024, "Code": 7548 * 1024, "GC": 37924 * 1024}
    assert jvm_heap.read_tracking("Native memory tracking is not enabled\n") is None


@given(st.text())
def test_whatever_a_process_answers_is_checked(answer: str) -> None:
    facts, _ranges = jvm_heap.read_heap(answer)
    JvmMemory.from_json({**facts, "heap_resident": None, "time": 1.0, "nmt": jvm_heap.read_tracking(answer)})


@pytest.mark.parametrize(
    "wrong",
    [{"heap_used": -1}, {"heap_used": True}, {"time": "now"}, {"nmt": {"Class": "x"}}, {"nmt": []}, {"more": 1}],
)
def test_wrong_facts_are_refused(wrong: dict[str, Any]) -> None:
    right = dict.fromkeys(("heap_used", "heap_committed", "heap_resident", "metaspace", "nmt"), None)
    JvmMemory.from_json({**right, "time": 1.0})
    with pytest.raises(JvmMemoryError):
        JvmMemory.from_json({**right, "time": 1.0, **wrong})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("classes")
    (directory / "Holder.java").write_text(HOLDER)
    subprocess.run(["javac", "--release", "8", "-d", str(directory), str(directory / "Holder.java")], check=True)
    return directory


@pytest.fixture
def jvm(source: Path) -> Iterator[Callable[..., int]]:
    running: list[subprocess.Popen[bytes]] = []

    def start(*options: str, java: str = "java") -> int:
        command = [java, "-Xmx128m", *options, "-cp", str(source), "Holder"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        return process.pid

    yield start
    for process in running:
        process.kill()
        process.communicate()
        Path(f"/tmp/.java_pid{process.pid}").unlink(missing_ok=True)


@needs_java
def test_the_newest_dump_of_a_living_jvm_gets_the_numbers(jvm: Callable[..., int]) -> None:
    pid = jvm()
    alive = FoundProcess(pid, _key(pid), None, 1.0, None, None)
    other = alive._replace(pid=os.getpid(), key=_key(os.getpid()))
    captures = [
        ListedCapture("a.service", "n", Identity(1, 2, 3), "", 1.0, number, [], True, None, None, None)
        for number in (0, 0, 1, 2)
    ]
    found = Listing(captures, [alive, alive._replace(start_time=None), other], [], 0, {}, {}, [], [])
    steps.ask_jvms(found)
    assert [capture.jvm is not None for capture in captures] == [False, True, False, False]
    json.dumps(found.to_json())


def _key(pid: int) -> str:
    return process_key.key(pid, procfs.mappings(pid))


@needs_java
@pytest.mark.parametrize("java", JAVAS, ids=str)
@pytest.mark.parametrize("collector", ["-XX:+UseSerialGC", "-XX:+UseG1GC"])
def test_a_jvm_with_tracking(jvm: Callable[..., int], collector: str, java: Path) -> None:
    pid = jvm(collector, "-XX:NativeMemoryTracking=summary", java=str(java))
    found = jvm_heap.ask(pid, _key(pid))
    used, committed, resident = found.heap_used or 0, found.heap_committed or 0, found.heap_resident or 0
    assert 64 * MIB <= used <= committed <= 128 * MIB
    assert 64 * MIB <= resident <= committed + MIB
    assert 0 < (found.metaspace or 0) < 64 * MIB
    assert {"Java Heap", "Thread", "Code"} <= set(found.nmt or {})


@needs_java
def test_a_jvm_without_tracking_and_another_process(jvm: Callable[..., int]) -> None:
    pid = jvm()
    assert jvm_heap.ask(pid, _key(pid)).nmt is None
    with pytest.raises(JvmMemoryError, match="ended"):
        jvm_heap.ask(pid, f"{pid}-00000000")
    with pytest.raises(JvmMemoryError, match="not a JVM"):
        jvm_heap.ask(os.getpid(), _key(os.getpid()))
