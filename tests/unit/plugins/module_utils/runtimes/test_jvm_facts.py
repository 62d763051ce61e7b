# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Answers of JDK 17 and 21, and a JVM that stops answering."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import (
    hotspot_attach,
    hotspot_protocol,
    jvm_facts,
)

CODE = """CodeHeap 'non-profiled nmethods': size=120036Kb used=1Kb max_used=1Kb free=120034Kb
 bounds [0x00007f89d8ec7000, 0x00007f89d9137000, 0x00007f89e0400000]
CodeHeap 'non-nmethods': size=5692Kb used=1031Kb max_used=1031Kb free=4660Kb
 bounds [0x00007f89d8938000, 0x00007f89d8ba8000, 0x00007f89d8ec7000]
"""
METASPACE = """vsl non-class-space:
- node #0: base 0x00007f8977000000: reserved=65536.00 KB, committed=192.00 KB ( <1%), used=16384.00 KB ( 25%)
 0:0x00007f8977000000: CMmlkjihgfedb
vsl class-space:
- node #0: base 0x00007f897c000000: reserved=1048576.00 KB, committed=128.00 KB ( <1%), used=16384.00 KB (  2%)
"""
NMT = """Native Memory Tracking:

Total: reserved=1709270KB, committed=332362KB
       malloc: 6910KB #5012

-                 Java Heap (reserved=262144KB, committed=262144KB)
                            (mmap: reserved=262144KB, committed=262144KB)
-                     Other (reserved=80KB, committed=64KB)
                            (malloc=64KB #8)
"""
MALLOC = """<malloc version="1">
<heap nr="0">
<total type="fast" count="1" size="32"/>
<total type="rest" count="1" size="100"/>
<system type="current" size="135168"/>
</heap>
<total type="fast" count="2" size="64"/>
<total type="rest" count="3" size="1000"/>
<total type="mmap" count="1" size="8192"/>
<system type="current" size="270336"/>
</malloc>
"""


def test_the_code_cache() -> None:
    assert jvm_facts.code_cache_use(CODE) == {"reserved": 125728 * 1024, "used": 1032 * 1024}
    assert jvm_facts.code_ranges(CODE) == [
        (0x7F89D8EC7000, 0x7F89E0400000, "code-cache"),
        (0x7F89D8938000, 0x7F89D8EC7000, "code-cache"),
    ]


def test_metaspace() -> None:
    assert jvm_facts.metaspace_ranges(METASPACE) == [
        (0x7F8977000000, 0x7F8977000000 + (64 << 20), "metaspace"),
        (0x7F897C000000, 0x7F897C000000 + (1 << 30), "metaspace"),
    ]


def test_native_memory_tracking() -> None:
    assert jvm_facts.native_memory(NMT) == {
        "committed": 332362 * 1024,
        "categories": {"Java Heap": 262144 * 1024, "Other": 64 * 1024},
    }
    assert jvm_facts.native_memory("Native memory tracking is not enabled") is None


def test_glibc_by_its_own_words() -> None:
    assert jvm_facts.malloc_info(MALLOC) == {"held": 270336, "free": 1064, "mmapped": 8192}
    assert jvm_facts.malloc_info("Not available") is None


def test_flags_that_matter() -> None:
    text = "-XX:CICompilerCount=2 -XX:MaxHeapSize=268435456 -XX:+UseG1GC -XX:-AlwaysPreTouch"
    assert jvm_facts.flags(text) == {"MaxHeapSize": "268435456", "UseG1GC": "true", "AlwaysPreTouch": "false"}


def test_counters() -> None:
    values = {
        "java.threads.live": 7,
        "java.cls.loadedClasses": 4,
        "java.cls.sharedLoadedClasses": 397,
        "java.cls.unloadedClasses": 1,
        "sun.gc.collector.0.invocations": 2,
        "sun.gc.generation.0.space.1.used": 100,
        "sun.gc.generation.1.space.0.used": 1000,
    }
    assert jvm_facts.counters(values) == {
        "threads": 7,
        "classes": 400,
        "collections": 2,
        "heap_after_collection": 1100,
    }
    assert jvm_facts.counters({**values, "sun.gc.collector.0.invocations": 0})["heap_after_collection"] is None
    assert set(jvm_facts.counters({}).values()) == {None}


def test_agents_without_their_options(tmp_path: Path) -> None:
    directory = tmp_path / "50"
    directory.mkdir()
    (directory / "environ").write_bytes(b"JAVA_TOOL_OPTIONS=-agentpath:/opt/a.so=key=secret -Xmx1g\0")
    (directory / "cmdline").write_bytes(b"/usr/bin/java\0-javaagent:/opt/dd.jar\0-agentlib:jdwp=transport=x\0-cp\0a")
    assert jvm_facts.agents(50, str(tmp_path)) == ["agentlib:jdwp", "agentpath:/opt/a.so", "javaagent:/opt/dd.jar"]
    (directory / "cmdline").write_bytes(b"sh\0-javaagent:/opt/dd.jar")
    assert jvm_facts.agents(50, str(tmp_path)) == []


def test_a_question_that_is_not_answered_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def command(_jvm: hotspot_protocol.Jvm, text: str, *_rest: object) -> str:
        asked.append(text)
        if text == "VM.flags":
            raise hotspot_protocol.HotspotError("did not answer in time")
        return "JDK 17.0.1\nVM.flags\nGC.heap_info\n"

    monkeypatch.setattr(hotspot_attach, "look", lambda pid, proc: hotspot_protocol.Jvm(pid, pid, 1, 0, 0, (), True))
    monkeypatch.setattr(hotspot_attach, "command", command)
    with pytest.raises(hotspot_protocol.HotspotError, match="in time"):
        jvm_facts.ask(50, 1.0)
    assert asked == ["help", "VM.version", "VM.flags"]
