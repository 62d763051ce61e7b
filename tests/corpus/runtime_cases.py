# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Cases of runtimes' profilers (the JVM's, Python's, Node's, Rust's), of the kernel's tools, and of OpenTelemetry."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.request import urlopen

from ansible_collections.offheap.profiler.tests.corpus import own_readers
from ansible_collections.offheap.profiler.tests.corpus.allocator_cases import debian
from ansible_collections.offheap.profiler.tests.corpus.corpus_case import Case, Own, Writer
from ansible_collections.offheap.profiler.tests.corpus.crowd_programs import NUMBERS, PROGRAMS, built
from ansible_collections.offheap.profiler.tests.unit.plugins.plugin_utils.readers.test_otlp_profile import SOURCE
from ansible_collections.offheap.profiler.tests.unit.strategies import kernel_tools, recordings, rust_program

_PACKAGES = PROGRAMS.parent / "packages"
_BUN, _DDTRACE, _FIL, _OTLP, _DATADOG = "1.4.5", "4.16.0", "2024.11.2", "1.45.2", "5.20.0"
ASYNC = Writer(
    "async-profiler",
    lambda: recordings.VERSION,
    "jfr print, or its own collapsed stacks",
    "what was allocated before it began",
)
DD_JAVA = Writer("dd-java-agent", lambda: recordings.DATADOG_VERSION, "jfr print", "what was freed")
DDTRACE = Writer("dd-trace-py", lambda: _DDTRACE, "go tool pprof", "the interval between its samples")
FIL = Writer("filprofiler", lambda: _FIL, "its own flame graph", "what its numbers are")
OTLP = Writer("opentelemetry-proto", lambda: _OTLP, "its own classes", "what a writer leaves out")
DATADOG = Writer("@datadog/pprof", lambda: _DATADOG, "go tool pprof", "native memory: it is of V8's own heap")
BUN = Writer("Bun", lambda: _BUN, "-")
NODE = Writer("Node", lambda: own_readers.said("node", "--version").strip(), "-")
RUST_DHAT = Writer("dhat (Rust)", lambda: "0.3.2", "dh_view.html's code", "a time")
RUST_PPROF = Writer(
    "pprof_util (Rust)", lambda: "0.4.1", "go tool pprof", "names, and the interval between its samples"
)
PERF = Writer("perf", debian("linux-perf"), "perf report", "what was freed")
HOTSPOT = Writer("HotSpot", debian("openjdk-17-jre-headless"), "-")
GLIBC = Writer("glibc", debian("libc6"), "-")
MEMLEAK = Writer("bcc memleak", debian("bpfcc-tools"), "its own lines", "what was allocated before it began")
_TOUCHED, _FORGOTTEN = 500, 999


@cache
def python_with(package: str) -> Path:
    """A Python that has this package of PyPI, in a place of its own."""
    place = _PACKAGES / package
    if not place.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([place / "bin" / "pip", "install", "--quiet", package], check=True)
    return place / "bin" / "python"


@cache
def node_modules(package: str) -> Path:
    """Where this package of npm is installed."""
    place = _PACKAGES / package.replace("/", "-")
    if not (place / "node_modules").exists():
        place.mkdir(parents=True)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", package], check=True, cwd=place)
    return place / "node_modules"


def _recorded(options: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        return recordings.recording(directory, recordings.library(directory), options)

    return write


def _exported(directory: Path) -> Path:
    """The same as OTLP and as collapsed stacks, from a JVM that runs."""
    (directory / "Both.java").write_text(SOURCE)
    subprocess.run(["javac", "-cp", recordings.JAR, directory / "Both.java"], check=True)
    classes = f"{directory}:{recordings.JAR}"
    own_readers.said("java", "-Xmx64m", "-cp", classes, "Both", recordings.library(directory), directory)
    return directory / "x.otlp"


_PYTHON_HOLDS = "".join(
    f"def hold_{n}():\n    kept.append([bytearray({1000 * n}) for i in range(400)])\n" for n in NUMBERS
)
_PYTHON = f"kept = []\n{_PYTHON_HOLDS}" + "".join(f"hold_{n}()\n" for n in NUMBERS)


def _ddtrace(directory: Path) -> Path:
    python = python_with(f"ddtrace=={_DDTRACE}")
    program = directory / "held.py"
    program.write_text(_PYTHON + "import time\ntime.sleep(1)\n")
    told = {"DD_PROFILING_ENABLED": "1", "DD_PROFILING_OUTPUT_PPROF": str(directory / "p"), "DD_TRACE_ENABLED": "false"}
    told |= {"DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"}
    command: list[str | Path] = [python.with_name("ddtrace-run"), python, program]
    subprocess.run(command, check=True, env={**os.environ, **told}, capture_output=True, timeout=200)
    return max(directory.glob("p.*.pprof"))


def _fil(directory: Path) -> Path:
    python = python_with(f"filprofiler=={_FIL}")
    program = directory / "held.py"
    program.write_text(_PYTHON)
    command: list[str | Path] = [
        python.with_name("fil-profile"),
        "-o",
        directory / "out",
        "--no-browser",
        "run",
        program,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    (file,) = directory.glob("out/*/peak-memory.prof")
    return file


_OTLP_PROGRAM = """\
import sys
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData
data = ProfilesData()
known = data.dictionary
texts = ["", "inuse_space", "bytes", "inuse_objects", "count", "main"]
known.string_table.extend([*texts, *(f"hold_{n}" for n in range(1, 13))])
for table in (known.mapping_table, known.attribute_table, known.link_table, known.stack_table):
    table.add()
known.function_table.add()
known.location_table.add()
for name in range(5, 18):
    known.function_table.add(name_strindex=name)
    known.location_table.add(address=0x1000 * name).lines.add(function_index=name - 4, line=name)
for n in range(1, 13):
    known.stack_table.add(location_indices=[n + 1, 1])
scope = data.resource_profiles.add().scope_profiles.add()
for kind, unit, value in ((1, 2, 1007), (3, 4, 10)):
    profile = scope.profiles.add(time_unix_nano=1790000000000000000, period=524288)
    profile.sample_type.type_strindex, profile.sample_type.unit_strindex = kind, unit
    profile.period_type.type_strindex, profile.period_type.unit_strindex = 1, 2
    for n in range(1, 13):
        profile.samples.add(stack_index=n, values=[value * n])
open(sys.argv[1], "wb").write(data.SerializeToString())
"""


def _otlp(directory: Path) -> Path:
    own_readers.said(python_with(f"opentelemetry-proto=={_OTLP}"), "-c", _OTLP_PROGRAM, directory / "x.otlp")
    return directory / "x.otlp"


def _own_of_otlp(file: Path) -> Own:
    return own_readers.opentelemetry(python_with(f"opentelemetry-proto=={_OTLP}"))(file)


_NODE_HOLDS = "".join(
    f"function hold_{n}() {{ for (let i = 0; i < {400 * n}; i++) kept.push(new Array({10 * n}).fill(i)); }}\n"
    for n in NUMBERS
)
_NODE_CALLS = "".join(f"hold_{n}();\n" for n in NUMBERS)


def _datadog(interval: int) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        program = directory / "held.js"
        program.write_text(
            f'const pprof = require("@datadog/pprof");\nconst kept = [];\n{_NODE_HOLDS}'
            f"pprof.heap.start({interval}, 64);\n{_NODE_CALLS}pprof.encode(pprof.heap.profile())"
            '.then((data) => require("fs").writeFileSync("x.pb.gz", data));\n'
        )
        found = {**os.environ, "NODE_PATH": str(node_modules(f"@datadog/pprof@{_DATADOG}"))}
        subprocess.run(["node", program], check=True, cwd=directory, env=found, capture_output=True)
        return directory / "x.pb.gz"

    return write


def _of_node(option: str, pattern: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        program = directory / "held.js"
        program.write_text(f"const kept = [];\n{_NODE_HOLDS}{_NODE_CALLS}")
        command: list[str | Path] = ["node", *option.replace("HERE", str(directory)).split(), program]
        subprocess.run(command, check=True, cwd=directory, capture_output=True)
        return next(directory.glob(pattern))

    return write


_SNAPSHOT = """\
require("fs").writeFileSync("x.json", JSON.stringify(Bun.generateHeapSnapshot()));
"""


def _of_bun(option: str, pattern: str, more: str = "") -> Case:
    def write(directory: Path) -> Path:
        machine = {"x86_64": "x64"}.get(platform.machine(), platform.machine())
        modules = node_modules(f"@oven/bun-linux-{machine}@{_BUN}")
        program = directory / "held.js"
        program.write_text(f"const kept = [];\n{_NODE_HOLDS}{_NODE_CALLS}{more}")
        command: list[str | Path] = [modules / "@oven" / f"bun-linux-{machine}" / "bin" / "bun", *option.split()]
        subprocess.run([*command, program], check=True, cwd=directory, capture_output=True)
        return next(directory.glob(pattern))

    mode = option or "Bun.generateHeapSnapshot()"
    refused = "CPU profile of JavaScript" if "cpu" in option else "JavaScript's own objects"
    return Case(f"bun{option[1:] or '-snapshot'}", BUN, mode, write, refused=refused)


def _rust_dhat(directory: Path) -> Path:
    program = rust_program.built(Path(__file__).parent / "rust_dhat", directory)
    own_readers.said(program, directory / "dhat.json")
    return directory / "dhat.json"


def _rust_endpoint(directory: Path) -> Path:
    program = rust_program.built(Path(rust_program.__file__).parent / "rust_endpoint", directory)
    found = {**os.environ, "MALLOC_CONF": "prof:true,lg_prof_sample:0"}
    with subprocess.Popen([program, directory / "dump"], stdout=subprocess.PIPE, env=found) as service:
        assert service.stdout is not None
        at = f"http://127.0.0.1:{int(service.stdout.readline())}"
        for path in ("/forget/500", "/debug/pprof/heap"):
            with urlopen(at + path, timeout=60) as answer:
                (directory / "x.pb.gz").write_bytes(answer.read())
        service.kill()
    return directory / "x.pb.gz"


def _own_total(file: Path) -> Own:
    """Of addresses, which google/pprof names as it finds images."""
    return Own(own_readers.go_pprof()(file).total)


def _faults(directory: Path) -> Path:
    with kernel_tools.running(directory) as program:
        return kernel_tools.script(kernel_tools.faults(program, directory, _TOUCHED))


def _perf_data(directory: Path) -> Path:
    return _faults(directory).with_suffix(".data")


def _heap_dump(directory: Path) -> Path:
    """What a JVM writes of itself when it runs out of memory."""
    program = directory / "Full.java"
    program.write_text("class Full { public static void main(String[] a) { long[][] x = new long[99][9999999]; } }\n")
    command: list[str | Path] = [
        "java",
        "-Xmx16m",
        "-XX:+HeapDumpOnOutOfMemoryError",
        f"-XX:HeapDumpPath={directory}/x.hprof",
        program,
    ]
    subprocess.run(command, check=False, capture_output=True)
    return directory / "x.hprof"


def _mtrace(directory: Path) -> Path:
    told = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_TRACE": str(directory / "trace")}
    subprocess.run([built("crowd_mtrace"), "1"], check=True, env={**os.environ, **told})
    return directory / "trace"


def _memleak(directory: Path) -> Path:
    with kernel_tools.running(directory) as program:
        return kernel_tools.memleak_reports(program, directory, [_FORGOTTEN] * 2)[-1]


CASES = [
    Case(
        "async-profiler-jfr",
        ASYNC,
        f"nativemem={own_readers.JFR_INTERVAL}",
        _recorded(f"nativemem={own_readers.JFR_INTERVAL}"),
        own_readers.jdk,
    ),
    Case("async-profiler-otlp", ASYNC, "dump,otlp,total", _exported, own_readers.folded_beside),
    Case("async-profiler-cpu", ASYNC, "event=itimer", _recorded("event=itimer"), refused="nativemem"),
    Case("datadog-java-nativemem", DD_JAVA, "nativemem=65536", recordings.datadogs_recording, own_readers.jdk_weighted),
    Case("dd-trace-py-heap", DDTRACE, "heap-space", _ddtrace, own_readers.go_pprof("heap-space")),
    Case("filprofiler-peak", FIL, "peak-memory.prof", _fil, own_readers.svg, "live:bytes:1"),
    Case("opentelemetry-proto", OTLP, "its classes for Python", _otlp, _own_of_otlp),
    Case("datadog-pprof-8k", DATADOG, "heap.start(8192)", _datadog(8192), own_readers.go_pprof()),
    Case("datadog-pprof-64k", DATADOG, "heap.start(65536)", _datadog(65536), own_readers.go_pprof()),
    Case(
        "node-heap-prof",
        NODE,
        "--heap-prof",
        _of_node("--heap-prof", "*.heapprofile"),
        refused="JavaScript's own objects",
    ),
    Case(
        "node-cpu-prof", NODE, "--cpu-prof", _of_node("--cpu-prof", "*.cpuprofile"), refused="CPU profile of JavaScript"
    ),
    _of_bun("--heap-prof", "*.heapprofile"),
    _of_bun("--heap-prof-md", "Heap*.md"),
    _of_bun("", "x.json", _SNAPSHOT),
    _of_bun("--cpu-prof", "*.cpuprofile"),
    _of_bun("--cpu-prof-md", "CPU*.md"),
    Case("rust-dhat", RUST_DHAT, "its own file", _rust_dhat, own_readers.dh_view(callees="hold_")),
    Case("rust-pprof-util", RUST_PPROF, "lg_prof_sample:0", _rust_endpoint, _own_total, "::1"),
    Case("perf-page-faults", PERF, "page-faults -c 1 -g", _faults, own_readers.perf_report),
    Case("perf-own", PERF, "its own file", _perf_data, refused="perf script --show-lost-events -F"),
    Case("hotspot-hprof", HOTSPOT, "HeapDumpOnOutOfMemoryError", _heap_dump, refused="Eclipse MAT"),
    Case("glibc-mtrace", GLIBC, "MALLOC_TRACE", _mtrace, refused="glibc's mtrace"),
    Case("memleak-attached", MEMLEAK, "-T 10000 -o 0", _memleak, own_readers.memleaks_lines),
]
