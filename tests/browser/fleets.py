# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Fleets to report on: a JVM that leaks on some hosts since a new version, a server that does not, and others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ansible_collections.offheap.profiler.plugins.module_utils.formats.capture_facts import (
    CaptureFacts,
    DumpFacts,
    KnownImage,
    ProcessFacts,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks import hints
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.holding import Held, Holding
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.life_curve import life_curve
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.survey import Host, Process, Together, side_by_side
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.verdict import Verdict, judge
from ansible_collections.offheap.profiler.plugins.plugin_utils.leaks.watched import (
    NOTHING_READ,
    Watched,
    verdict_on_host,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.frame import Kind
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.samples import BYTES, OBJECTS, Samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.sampling import Sampling, Scheme
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.series import of_samples
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.stack_summary import sources
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.fleet import Fleet, Observed
from ansible_collections.offheap.profiler.plugins.plugin_utils.report.host_report import Report
from ansible_collections.offheap.profiler.plugins.plugin_utils.symbols.jit_symbols import JitMaps
from ansible_collections.offheap.profiler.tests.bench import shapes
from ansible_collections.offheap.profiler.tests.unit.strategies.profiles import profile

MIB = 1 << 20
KNOWN = hints.load([])
HELD = Holding(
    212,
    (
        Held("lost", "lost: nothing leads to them", 198, 0.934, 0.892, 0.96),
        Held(
            "global",
            "kept by global session_cache of app, through 40960-byte blocks",
            14,
            0.066,
            0.04,
            0.108,
            ("global session_cache of app", "40960-byte blocks"),
        ),
    ),
    "",
    "Look where the pointer that inflate got is overwritten or goes out of scope, as by a return.",
    1794990000.0,
)
START = 1794900000.0
STEP = 7200.0
Stacks = dict[tuple[str, ...], float]
Dumps = list[tuple[float, Stacks, CaptureFacts]]
# By name, so many threads and what part of a stack they hold.
Threads = dict[str, tuple[int, Callable[[tuple[str, ...]], float]]]

SERVE = ("java:Frontend.serveAsset", "java:Frontend.handleRequest", "java:com.sun.net.httpserver.Filter$Chain.doFilter")
THREAD = (
    "java:java.util.concurrent.ThreadPoolExecutor.runWorker",
    "java:java.lang.Thread.run",
    "JavaCalls::call_helper",
)
ENTRY = ("thread_native_entry", "start_thread")
INFLATE = (
    *("inflate", "Java_java_util_zip_Inflater_inflateBytesBytes", "java:java.util.zip.Inflater.inflateBytesBytes"),
    *("java:java.util.zip.InflaterInputStream.read", "java:java.io.FilterInputStream.read", "java:Frontend.unpack"),
    *(*SERVE, *THREAD, *ENTRY),
)
INIT = (
    *("inflateInit2_", "Java_java_util_zip_Inflater_init", "java:java.util.zip.Inflater.init"),
    *("java:java.util.zip.GZIPInputStream.<init>", *SERVE, *THREAD, *ENTRY),
)
# Where a JVM's native functions lie, by how their names begin.
LIBRARIES = {
    "inflate": "libz.so.1",
    "Java_java_util_zip": "libzip.so",
    "readCEN": "libzip.so",
    "ZIP_": "libzip.so",
    "start_thread": "libc.so.6",
    "SSL_": "libtcnative.so",
    "Java_tcnative": "libtcnative.so",
    "JavaMain": "libjli.so",
    "": "libjvm.so",
}
COMPILER = ("os::malloc", "AllocateHeap", "Chunk::operator new", "Arena::grow")
COMPILE = ("Compile::Compile", "C2Compiler::compile_method", "CompileBroker::compiler_thread_loop", *ENTRY)


def jvm(leaked: float, rng: random.Random, cache: float = 0.0) -> Stacks:
    """What a JVM holds; ``leaked`` and ``cache`` are MiB."""

    def about(size: float) -> float:
        return size * MIB * rng.uniform(0.94, 1.06)

    stacks = {
        INFLATE: leaked * 0.82 * MIB,
        INIT: leaked * 0.18 * MIB,
        (*COMPILER, "PhaseIdealLoop::build_and_optimize", *COMPILE): about(9),
        (*COMPILER, "Parse::do_one_block", *COMPILE): about(7),
        (*COMPILER, "PhaseChaitin::Register_Allocate", *COMPILE): about(6),
        (
            "os::malloc",
            "Unsafe_AllocateMemory0",
            "java:java.nio.DirectByteBuffer.<init>",
            *SERVE,
            *THREAD,
            *ENTRY,
        ): about(24),
        ("os::malloc", "SymbolTable::allocate_symbol", "ClassFileParser::parse_constant_pool", *THREAD, *ENTRY): about(
            14
        ),
        ("os::malloc", "G1CardSet::add_card", "G1RemSet::refine_card", "G1ConcurrentRefineThread::run", *ENTRY): about(
            11
        ),
        ("SSL_new", "Java_tcnative_SSL_newSSL", "java:io.netty.handler.ssl.Engine.<init>", *THREAD, *ENTRY): about(8),
        ("readCEN", "ZIP_Put_In_Cache0", "ClassLoader::add_package", "JavaMain", "start_thread"): about(4),
    }
    if cache:
        stacks[("os::malloc", "Unsafe_AllocateMemory0", "java:AssetCache.put", *SERVE, *THREAD, *ENTRY)] = cache * MIB
    return stacks


def facts(live: float, other: float, version: str, java: bool = True, pid: int = 2211) -> CaptureFacts:
    """What came with a dump: memory statistics, and for a JVM its heap (``other`` MiB is the heap's use)."""
    allocated = live * 1.015
    active = allocated * 1.09
    resident = active + 9 * MIB + active * 0.12
    heap = 768 * MIB if java else 0.0
    mapped = 42 * MIB + heap + (163 * MIB if java else 18 * MIB)
    memory = {
        "rss": round(resident + mapped + 37 * MIB),
        "rss_file": 42 * MIB,
        "allocated": round(allocated),
        "active": round(active),
        "metadata": 9 * MIB,
        "resident": round(resident),
    }
    nmt = {"Class": 9, "Metaspace": 61, "Code": 48, "Thread": 22, "GC": 23}
    jvm = {
        "heap_resident": heap,
        "heap_used": round(other * MIB),
        "heap_committed": heap,
        "metaspace": 70 * MIB,
        "nmt": {name: size * MIB for name, size in nmt.items()},
    }
    exe = "/usr/bin/java" if java else "/usr/sbin/edge-proxy"
    return CaptureFacts(
        host="app1",
        unit="frontend.service",
        dump=DumpFacts(f"jeprof.{pid}.0.i0.heap", 1, "0" * 64, START),
        process=ProcessFacts(pid, f"{pid}-1a2b3c4d", start_time=START - 900, exe=exe),
        label=version,
        agent={"memory": memory},
        jvm=jvm if java else None,
    )


def moved(found: Samples, libraries: dict[str, str]) -> Samples:
    """The samples with native functions in these files, by how their names begin."""

    def file(function: str) -> str:
        return next(name for start, name in libraries.items() if function.startswith(start))

    frames = [one._replace(module=file(one.function)) if one.kind is Kind.NATIVE else one for one in found.frames]
    return replace(found, frames=frames)


def process(
    unit: str,
    host: str,
    key: str,
    dumps: Dumps,
    libraries: dict[str, str] | None = None,
    sampling: Sampling | None = None,
) -> Process:
    """A process from its dumps, judged: time, stacks, facts. ``libraries`` says where its native functions lie, and
    ``sampling`` how the dumps came to be, if not as usual."""

    def samples(stacks: Stacks) -> Samples:
        found = moved(profile(stacks), libraries or {"": "app"})
        return replace(found, sampling=sampling or found.sampling)

    series = of_samples([(time, samples(stacks)) for time, stacks, _facts in dumps])
    captures = [
        Capture(Path(), host, unit, key, number, time, known) for number, (time, _stacks, known) in enumerate(dumps)
    ]
    label, live = captures[-1].facts.label or "", float(series.bytes[:, -1].sum())
    watched = Watched(unit, host, key, label, series.times[0], series.times[-1], judge(key, series), live)
    return Process(watched, captures, series, JitMaps({}, print))


def observe(
    fleet: Fleet,
    unit: str,
    host: str,
    processes: list[Process],
    newest: Samples | None = None,
    together: Together | None = None,
) -> None:
    """Give what was seen to the fleet, as the report does."""
    captures = sum(len(one.captures) for one in processes)
    unjudged = Host(unit, host, captures, processes, NOTHING_READ, together)
    verdict = with_lives(verdict_on_host(unjudged.judged))
    seen = replace(unjudged, verdict=verdict)
    report = Report(unit, host, verdict, captures, verdict.suspects)
    known = [hints.for_path(KNOWN, suspect.path) for suspect in verdict.suspects]
    nowhere = [sources(suspect.path, []) for suspect in verdict.suspects]
    fleet.add(Observed(seen, report.headline, verdict.suspects, known, nowhere, newest))


def with_lives(verdict: Verdict) -> Verdict:
    """The verdict, as if each suspect's objects had never died, and those of other paths within minutes; and as if a
    look had found who holds them."""
    seen = shapes.process(shapes.SHAPES["steady"], np.random.default_rng(3), 1 << 18).lives(shapes.DAY)
    suspects = [replace(suspect, lives=life_curve(seen, [0]), holding=HELD) for suspect in verdict.suspects]
    return replace(verdict, suspects=suspects, others=life_curve(seen, [1, 3])) if suspects else verdict


def with_threads(stacks: Stacks, threads: Threads) -> Samples:
    """The samples of a dump in which threads hold parts of the stacks."""
    found = profile(stacks)
    names: dict[int, str] = {}
    records: list[tuple[int, int, float]] = []
    for name, (count, part_of) in threads.items():
        for uid in range(len(names), len(names) + count):
            names[uid] = name
            records += [(number, uid, part / count) for number, stack in enumerate(stacks) if (part := part_of(stack))]
    parts = np.array([part for _stack, _uid, part in records])
    values = np.zeros((4, len(records)))
    for row in (OBJECTS, BYTES):
        values[row] = parts * found.values[row, [stack for stack, _uid, _part in records]]
    return replace(
        found,
        thread_stack=np.array([stack for stack, _uid, _part in records], dtype=np.int64),
        thread_uid=np.array([uid for _stack, uid, _part in records], dtype=np.int64),
        thread_values=values,
        thread_names=names,
    )


def frontend(fleet: Fleet, host: str, rate: float, dumps: int, rng: random.Random) -> None:
    """A host of the leaking JVM: ``rate`` MiB a day, with a restart into the new version after a third of the time."""
    unit = "frontend.service"

    def dump(number: int, leaked: float, version: str, pid: int) -> tuple[float, Stacks, CaptureFacts]:
        stacks = jvm(leaked, rng, cache=min(30.0, 4.0 * number))
        live = sum(stacks.values())
        return START + number * STEP, stacks, facts(live, rng.uniform(280, 640), version, pid=pid)

    first = dumps // 3
    old = [dump(number, 2.0, "4.1.7", 1904) for number in range(first)]
    hours = STEP / 86400
    new = [
        dump(number, 2.0 + rate * (number - first) * hours * rng.uniform(0.985, 1.015), "4.2.0", 2211)
        for number in range(first, dumps)
    ]
    processes = [
        process(unit, host, "1904-0badc0de", old, LIBRARIES),
        process(unit, host, "2211-1a2b3c4d", new, LIBRARIES),
    ]
    observe(fleet, unit, host, processes, moved(with_threads(new[-1][1], THREADS), LIBRARIES))


def _through(function: str, share: float = 1.0) -> Callable[[tuple[str, ...]], float]:
    """That part of the stacks that go through a function."""
    return lambda stack: share if any(function in name for name in stack) else 0.0


THREADS: Threads = {
    "http-worker": (16, _through("serveAsset", 0.93)),
    "C2 CompilerThre": (2, _through("C2Compiler")),
    "G1 Conc#0": (1, _through("G1Conc")),
    "http-dispatcher": (1, _through("serveAsset", 0.07)),
    "main": (1, _through("JavaMain")),
}


def proxy(fleet: Fleet, host: str, dumps: int, rng: random.Random) -> None:
    """A host of a server whose memory rises and falls."""
    unit = "edge-proxy.service"
    series = []
    for number in range(dumps):
        loop = ("event_loop", "main", "__libc_start_main")
        stacks = {
            ("http2_session_new", "accept_connection", *loop): 40 * MIB * rng.uniform(0.8, 1.2),
            ("SSL_new", "tls_accept", "accept_connection", *loop): 22 * MIB * rng.uniform(0.85, 1.15),
            ("lru_insert", "cache_store", "handle_response", *loop): 64 * MIB * rng.uniform(0.98, 1.02),
            ("std::string::_M_create", "parse_headers", "handle_request", *loop): 6 * MIB * rng.uniform(0.7, 1.3),
        }
        series.append((START + number * STEP, stacks, facts(sum(stacks.values()), 0, "2.9", java=False, pid=871)))
    observe(fleet, unit, host, [process(unit, host, "871-00c0ffee", series)])


def fleet(hosts: int = 40, leaking: int = 14, dumps: int = 36) -> dict[str, Any]:
    """A leaking JVM on some of its hosts, and beside it a healthy server and a service that was only just watched."""
    rng = random.Random(5)
    found = Fleet()
    for number in range(hosts):
        rate = rng.uniform(54, 74) if number % 3 == 1 and number // 3 < leaking else 0.0
        frontend(found, f"app{number + 1:02d}", rate, dumps, rng)
    for number in range(3):
        proxy(found, f"edge{number + 1}", dumps, rng)
    series: Dumps = [
        (START + 3e5 + number, {("load", "main"): 3.0 * MIB}, facts(3 * MIB, 0, "1", False)) for number in (0, 1)
    ]
    observe(found, "mailer.service", "mail1", [process("mailer.service", "mail1", "9-00000001", series)])
    return found.data()


def two_distributions() -> dict[str, Any]:
    """Two hosts with the same leak and threads whose libraries are of different builds, as on two distributions."""
    found = Fleet()
    for host, library in (("app1", "libpthread-2.31.so"), ("app2", "libc.so.6")):
        rng = random.Random(3)
        series: Dumps = []
        for number in range(24):
            sizes = {"inflateInit2_": 5.0 + 9 * number, "cache_store": 60 * rng.uniform(0.99, 1.01), "SSL_new": 30.0}
            stacks: Stacks = {(name, "serve", "start_thread"): size * MIB for name, size in sizes.items()}
            series.append((START + number * STEP, stacks, facts(sum(stacks.values()), 0, "2", False, pid=61)))
        observe(found, "web.service", host, [process("web.service", host, "61-0000beef", series, {"": library})])
    return found.data()


def many_hosts() -> dict[str, Any]:
    """Thirty hosts of two zones, none of which leaks."""
    found = Fleet()
    for number in range(30):
        host = f"web-{number:02}.{'ab'[number % 2]}.example.org"
        series: Dumps = [
            (START + at * STEP, {("load", "main"): 30.0 * MIB}, facts(30 * MIB, 0, "2", False)) for at in range(12)
        ]
        observe(found, "web.service", host, [process("web.service", host, "2211-0000beef", series)])
    return found.data()


def debuggable() -> dict[str, Any]:
    """A service whose debug information is there; one function keeps from two of its lines."""
    found = Fleet()
    main = ("main at /src/shop/main.c:12", "__libc_start_main")
    stacks: Stacks = {
        ("keep at /src/shop/keep.c:7", "serve at /src/shop/serve.c:40", *main): 30.0 * MIB,
        ("keep at /src/shop/keep.c:9", "serve at /src/shop/serve.c:44", *main): 20.0 * MIB,
        ("inflateInit2_", *main): 10.0 * MIB,
        ("render at /src/shop/render.py:0", *main): 5.0 * MIB,
    }
    series: Dumps = [(START + at * STEP, stacks, facts(65 * MIB, 0, "2", False)) for at in range(3)]
    libraries = {"inflate": "libz.so.1", "__libc": "libc.so.6", "": "app"}
    observe(found, "shop.service", "shop1", [process("shop.service", "shop1", "7-00000007", series, libraries)])
    return found.data()


def workers() -> dict[str, Any]:
    """Two workers that dump at different times, and leak 2 and 4 MiB from dump to dump."""
    found = Fleet()
    processes = []
    for pid, rate in ((61, 2.0), (62, 4.0)):
        series: Dumps = []
        for number in range(24):
            stacks: Stacks = {("keep", "serve", "main"): rate * number * MIB, ("load", "main"): 30.0 * MIB}
            time = START + number * STEP + pid
            series.append((time, stacks, facts(sum(stacks.values()), 0, "2", False, pid=pid)))
        processes.append(process("web.service", "app1", f"{pid}-0000beef", series))
    together = side_by_side([(one, None) for one in processes], 60.0)
    observe(found, "web.service", "app1", processes, together=together)
    return found.data()


def small_leak() -> dict[str, Any]:
    """48 MiB a day in a heap of 11 GiB."""
    rng = random.Random(11)
    found = Fleet()
    series: Dumps = []
    for number in range(36):
        day = number * STEP / 86400
        stacks: Stacks = {
            ("table_grow", "load_index", "main"): 11 * 1024.0 * MIB,
            ("sessions_new", "accept", "main"): (2 + 48 * day) * MIB * rng.uniform(0.97, 1.03),
        }
        series.append((START + number * STEP, stacks, facts(sum(stacks.values()), 0, "3.1", java=False, pid=44)))
    observe(found, "index.service", "db1", [process("index.service", "db1", "44-0000abcd", series)])
    return found.data()


def recursive() -> dict[str, Any]:
    """A function that calls itself, in three dumps."""
    stacks: Stacks = {("walk", "walk", "walk", "main"): 16.0 * MIB, ("walk", "main"): 8.0 * MIB}
    found = Fleet()
    series: Dumps = [(START + number * STEP, stacks, facts(24 * MIB, 0, "1", False)) for number in range(3)]
    observe(found, "tree.service", "tree1", [process("tree.service", "tree1", "7-00000007", series)])
    return found.data()


# What a process holds, and what it holds later: one function that has grown, one that has shrunk, one that is new, one
# that is gone, and one that sampling moves a little.
TWO_TIMES: tuple[Stacks, Stacks] = (
    {
        ("leak", "serve", "main"): 10.0 * MIB,
        ("free_most", "main"): 60.0 * MIB,
        ("forget", "main"): 20.0 * MIB,
        ("idle", "main"): 40.0 * MIB,
        ("small", "main"): 0.2 * MIB,
    },
    {
        ("leak", "serve", "main"): 80.0 * MIB,
        ("free_most", "main"): 15.0 * MIB,
        ("learn", "main"): 25.0 * MIB,
        ("idle", "main"): 42.0 * MIB,
        ("small", "main"): 0.6 * MIB,
    },
)


def two_times() -> dict[str, Any]:
    """A process at the two times."""
    found = Fleet()
    series: Dumps = [
        (START + number * STEP, stacks, facts(sum(stacks.values()), 0, "1", False))
        for number, stacks in enumerate(TWO_TIMES)
    ]
    observe(found, "tree.service", "tree1", [process("tree.service", "tree1", "7-00000007", series)])
    return found.data()


def sampled_somehow() -> dict[str, Any]:
    """A process at the two times, by a tool that does not say how it samples."""
    found = Fleet()
    series: Dumps = [
        (START + number * STEP, stacks, facts(sum(stacks.values()), 0, "1", False))
        for number, stacks in enumerate(TWO_TIMES)
    ]
    unknown = Sampling(Scheme.UNKNOWN)
    observe(found, "tree.service", "tree1", [process("tree.service", "tree1", "7-00000007", series, sampling=unknown)])
    return found.data()


def unnamed() -> dict[str, Any]:
    """A host whose captures have no label, and whose threads have no name."""
    stacks: Stacks = {("load", "main"): 16.0 * MIB, ("store", "main"): 8.0 * MIB}
    image = KnownImage("/usr/sbin/edge-proxy", "0123456789abcdef0123", 9)
    known = replace(facts(24 * MIB, 0, "", False), label=None, images=(image,))
    found = Fleet()
    series: Dumps = [(START + number * STEP, stacks, known) for number in range(3)]
    threads = with_threads(stacks, {"": (1, _through("load")), "worker": (1, _through("store"))})
    observe(found, "tree.service", "tree1", [process("tree.service", "tree1", "7-00000007", series)], threads)
    return found.data()


def marked() -> dict[str, Any]:
    """A host with a restart into the same version, and with a dump that growth has triggered."""
    found = Fleet()
    unit, host = "index.service", "db1"
    processes = []
    for pid, first in ((44, 0), (45, 8)):
        series: Dumps = []
        for number in range(first, first + 8):
            known = facts(40 * MIB, 0, "3.1", False, pid)
            if number == 11:
                known = replace(known, agent={**(known.agent or {}), "reason": "rss grew by 64 MiB"})
            series.append((START + number * STEP, {("load", "main"): 40.0 * MIB}, known))
        processes.append(process(unit, host, f"{pid}-0000abcd", series))
    observe(found, unit, host, processes)
    return found.data()


def large(frames: int) -> dict[str, Any]:
    """A host with a tree of about so many frames, in three dumps."""
    rng = random.Random(7)
    base: Stacks = {}
    while len(base) * 10 < frames:
        names = [f"level{depth}_{rng.randrange(2 + depth)}" for depth in range(10)]
        base[(*(f"leaf{len(base)}_{depth}" for depth in range(10)), *reversed(names))] = rng.expovariate(1.0) * MIB
    found = Fleet()
    series = [
        (
            START + number * STEP,
            {stack: size * rng.uniform(0.5, 1.5) for stack, size in base.items()},
            facts(1, 0, "1", False),
        )
        for number in range(4)
    ]
    observe(found, "large.service", "big1", [process("large.service", "big1", "7-00000007", series)])
    return found.data()


HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)>"


def hostile() -> dict[str, Any]:
    """A unit, a host, a thread, frames and an executable that try to be markup."""
    found = Fleet()
    known = replace(facts(50 * MIB, 0, HOSTILE, False), process=ProcessFacts(1, "1-1a2b3c4d", exe=HOSTILE))
    series: Dumps = [
        (START + number * STEP, {(HOSTILE, "main"): (5 + 8 * number) * MIB, ("x", "__proto__"): 4.0 * MIB}, known)
        for number in range(12)
    ]
    newest = with_threads(series[-1][1], {HOSTILE: (1, _through(HOSTILE)), "b": (1, _through("x", 0.25))})
    for host in (HOSTILE, "constructor"):
        observe(found, HOSTILE, host, [process(HOSTILE, host, "1-00000001", series)], newest)
    return found.data()


# What a triage has said.
LOOKED = {
    "unit": "cache.service",
    "host": "<b>web1</b>",
    "verdict": "malloc-arenas",
    "reason": "14 of 20 MiB are kept free in 12 arenas",
    "next_step": "try MALLOC_ARENA_MAX=2",
    "rss": 50 << 20,
    "watched": 600.0,
    "growth_bytes_per_hour": 3 << 20,
    "notes": ["an agent in the JVM is a suspect: jdwp"],
}
