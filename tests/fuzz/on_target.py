# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What our modules read as root on a host, of which services write a part, for the fuzzer (parser.py).

Every reader gets every input: as a file in the spool, as each file below /proc, and as what a process says.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client
from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, elf, jfr_header, sidecar
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup, host_memory, procfs
from ansible_collections.offheap.profiler.plugins.module_utils.memory import crashes, smaps
from ansible_collections.offheap.profiler.plugins.module_utils.runtimes import (
    hsperfdata,
    jvm_facts,
    jvm_heap,
    thread_dump,
)
from ansible_collections.offheap.profiler.plugins.module_utils.spool import dump, offered_profile
from ansible_collections.offheap.profiler.plugins.module_utils.tracing.thinned import Thinned
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import jfr_chunk
from ansible_collections.offheap.profiler.tests.fuzz.one_input import (
    GPERFTOOLS,
    JEMALLOC,
    RECORDING,
    Target,
    bounded,
    json_text,
)
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.formats.test_sidecar import NAME, WHOLE
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.memory.test_crashes import KILL, OUT_OF_MEMORY
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.runtimes import test_jvm_facts, test_jvm_heap
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.runtimes.test_hsperfdata import perf_data
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.runtimes.test_thread_dump import (
    TEXT as THREADS,
)
from ansible_collections.offheap.profiler.tests.unit.strategies import offers

# A directory like /proc, with one process. All that may be mutated there is one file by many names.
_PROC = tempfile.mkdtemp()
_OF_PROCESS = (
    *("maps", "smaps", "status", "stat", "limits", "auxv", "environ", "cmdline", "cgroup", "attr/current"),
    *("fd/3", "fdinfo/3", "task/1/syscall", "cwd/hs_err_pid1.log"),
)
_OF_HOST = ("stat", "meminfo", "sys/kernel/random/boot_id")
_OF_GROUP = (
    *("current", "peak", "max", "high", "swap.current", "stat", "events", "pressure"),
    *("usage_in_bytes", "limit_in_bytes", "kmem.usage_in_bytes", "oom_control"),
)
_UNIT = "frontend.service"


def _made() -> int:
    """The file that all names in the directory are of, open."""
    file = os.open(os.path.join(_PROC, "bytes"), os.O_RDWR | os.O_CREAT)
    for group in (_UNIT, f"1/{_UNIT}"):
        os.makedirs(os.path.join(_PROC, group))
    names = [f"1/{name}" for name in _OF_PROCESS] + [*_OF_HOST]
    names += [f"{_UNIT}/memory.{name}" for name in _OF_GROUP[:8]]
    names += [f"1/{_UNIT}/memory.{name}" for name in _OF_GROUP[5:]]
    for name in names:
        path = os.path.join(_PROC, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.link(os.path.join(_PROC, "bytes"), path)
    # One control group of each version.
    cgroup._UNIFIED, cgroup._VERSION_1 = (_PROC, _PROC), os.path.join(_PROC, "1")
    return file


_FILE = _made()


def _written(data: bytes) -> int:
    os.ftruncate(_FILE, 0)
    os.pwrite(_FILE, data, 0)
    return _FILE


def _each(readers: dict[str, Callable[..., Any]], *given: Any) -> None:
    """All of them, whatever one says."""
    for name, read in readers.items():
        read.__name__ = name
        bounded(read)(*given)


@bounded
def read_recording(data: bytes) -> None:
    with Thinned() as kept:
        kept.add(jfr_chunk.split(data + data))
        assert kept.size <= 2 * len(data)


@bounded
def read_sidecar(data: bytes) -> None:
    sidecar.read(_written(json_text(data, WHOLE)), NAME, WHOLE["size"])


@bounded
def read_image(data: bytes) -> None:
    """As a library or a program that a process has mapped."""
    image = elf.read(_written(data))
    image.functions(("dlopen", "malloc"))
    image.defines(("malloc",))
    image.has_section(".symtab")
    image.finds_thread_storage_late()


def read_spooled(data: bytes) -> None:
    """As a dump of each source, and as a profile that is offered."""
    _each(_SPOOLED, _written(data), len(data), data)


_SPOOLED: dict[str, Callable[[int, int, bytes], Any]] = {
    "jemalloc": lambda fd, size, data: dump.read(fd, size),
    "gperftools": lambda fd, size, data: dump.read(fd, size, dump_name.GPERFTOOLS),
    "recording": lambda fd, size, data: dump.read(fd, size, dump_name.TRACED),
    "pprof": lambda fd, size, data: dump.read(fd, size, dump_name.PPROF),
    "addresses": lambda fd, size, data: dump.addresses(fd, size),
    "finished": lambda fd, size, data: jfr_header.finished(lambda count, offset: data[offset : offset + count], size),
    "offered": lambda fd, size, data: offered_profile.prefix_of(offered_profile.unpacked(data)),
}


def read_proc(data: bytes) -> None:
    """As every file of a process below /proc, of the host, and of a control group."""
    _written(data)
    _each(_OF_PROC)


_OF_PROC: dict[str, Callable[[], Any]] = {
    "mappings": lambda: procfs.mappings(1, _PROC),
    "mapped_files": lambda: procfs.mapped_files(1, _PROC),
    "environ": lambda: procfs.environ(1, _PROC),
    "is_secure": lambda: procfs.is_secure(1, _PROC),
    "security_label": lambda: procfs.security_label(1, _PROC),
    "cmdline": lambda: procfs.cmdline(1, _PROC),
    "start_ticks": lambda: procfs.start_ticks(1, _PROC),
    "start_time": lambda: procfs.start_time(1, _PROC),
    "boot_id": lambda: procfs.boot_id(_PROC),
    "status": lambda: procfs.status(1, _PROC),
    "resident": lambda: procfs.resident(1, _PROC),
    "limits": lambda: procfs.limits(1, _PROC),
    "open_files": lambda: procfs.open_files(1, _PROC),
    "smaps": lambda: smaps.read(1, smaps.Knowledge([], smaps.stack_pointers(1, _PROC), True, _peek), _PROC),
    "agents": lambda: jvm_facts.agents(1, _PROC),
    "belongs_to": lambda: cgroup.belongs_to(1, _UNIT, _PROC),
    "group": lambda: cgroup.read(f"/{_UNIT}"),
    "group_of_version_1": lambda: cgroup.read(f"/{_UNIT}/.") and cgroup.read("/nowhere"),
    "meminfo": lambda: host_memory.read(_PROC),
}


def _peek(_address: int, length: int) -> bytes:
    return bytes(length)


def read_jvm(data: bytes) -> None:
    """As what a JVM answers, and what it leaves in files."""
    _written(data)
    _each(_OF_JVM, data, data.decode("utf-8", "replace"))


_OF_JVM: dict[str, Callable[[bytes, str], Any]] = {
    "counters": lambda data, text: jvm_facts.counters(hsperfdata.parse(data)),
    "flags": lambda data, text: jvm_facts.flags(text),
    "code_ranges": lambda data, text: jvm_facts.code_ranges(text),
    "code_cache_use": lambda data, text: jvm_facts.code_cache_use(text),
    "metaspace_ranges": lambda data, text: jvm_facts.metaspace_ranges(text),
    "native_memory": lambda data, text: jvm_facts.native_memory(text),
    "malloc_info": lambda data, text: jvm_facts.malloc_info(text),
    "heap": lambda data, text: jvm_heap.read_heap(text),
    "tracking": lambda data, text: jvm_heap.read_tracking(text),
    "threads": lambda data, text: [*thread_dump.stacks(text)],
    "error_files": lambda data, text: crashes.error_files(1, _PROC),
    "oom_kills": lambda data, text: crashes.oom_kills(text, "/system.slice", {"java"}),
}


_LISTENER = socket.socket(socket.AF_UNIX)
_SOCKET = client.AgentSocket(os.getpid(), os.path.join(_PROC, f"{os.getpid()}.sock"))
_LISTENER.bind(_SOCKET.path)
_LISTENER.listen()


@bounded
def read_answer(data: bytes) -> None:
    """As what the agent in a service says when it is told to dump."""
    with client.Connection(_SOCKET, timeout=5.0) as agent, _LISTENER.accept()[0] as connection:
        connection.sendall(json_text(data, _ANSWER) + b"\n")
        answer = agent.dump("/spool")
    assert os.path.dirname(answer.path) == "/spool" and answer.time >= 0.0


_ANSWER = {
    "protocol": client.PROTOCOL,
    "ok": True,
    "path": f"/spool/{NAME}",
    "size": 4096,
    "time": 1700000000.5,
    "sample_interval": 524288,
    "objects": 3,
    "bytes": 300,
}


def _of_proc() -> dict[str, bytes]:
    names = ("maps", "smaps", "status", "stat", "limits", "auxv", "cgroup", "fdinfo/0", "syscall")
    seeds = {name.replace("/", "-"): Path(f"/proc/self/{name}").read_bytes()[:8000] for name in names}
    return {
        **seeds,
        "meminfo": Path("/proc/meminfo").read_bytes(),
        "boot": b"btime 1700000000\n",
        "environ": b"A=b\0MALLOC_CONF=prof:true\0",
        "pressure": b"some avg10=0.00 avg60=1.50 avg300=0.10 total=9\n",
        "group": b"anon 1000\nfile 2000\nshmem 500\ntotal_rss 1000\ntotal_cache 5\noom_kill 2\n",
    }


def _of_jvm() -> dict[str, bytes]:
    texts = {
        "code": test_jvm_facts.CODE,
        "metaspace": test_jvm_facts.METASPACE,
        "nmt": test_jvm_facts.NMT,
        "malloc": test_jvm_facts.MALLOC,
        "parallel": test_jvm_heap.PARALLEL,
        "zgc": test_jvm_heap.ZGC,
        "shenandoah": test_jvm_heap.SHENANDOAH,
        "threads": THREADS,
        "crash": OUT_OF_MEMORY,
        "kill": KILL.format(group="/system.slice", pid=7),
        "flags": "-XX:MaxHeapSize=268435456 -XX:+UseG1GC",
    }
    return {"counters": perf_data(("java.threads.live", 7)), **{name: text.encode() for name, text in texts.items()}}


TARGETS = {
    "recording": Target(read_recording, lambda: {"recording": RECORDING}),
    "sidecar": Target(read_sidecar, lambda: {"whole": json.dumps(WHOLE).encode()}),
    "image": Target(read_image, lambda: {"small": Path("/bin/true").read_bytes()}),
    "spooled": Target(read_spooled, lambda: {"a": JEMALLOC, "b": GPERFTOOLS, "c": RECORDING, "d": offers.pprof(9)}),
    "proc": Target(read_proc, _of_proc),
    "jvm": Target(read_jvm, _of_jvm),
    "answer": Target(read_answer, lambda: {"answer": json.dumps(_ANSWER).encode()}),
}
