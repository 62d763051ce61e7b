# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Build the agent and the programs that try it, and run them as a service would.

With OFFHEAP_TEST_BUILD=cross, agent and jemalloc are those that the controller builds, else those that gcc does; with
aarch64, those that the controller builds for such hosts, under an emulator; with musl, those for
containers that have it.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent import builds
from ansible_collections.offheap.profiler.tests.agent.builds import BUILD, CROSS_GCC, EMULATOR, MUSL, MUSL_CC, SOURCES
from ansible_collections.offheap.profiler.tests.agent.service import Service

PROGRAMS = Path(__file__).resolve().parent / "programs"
#: as builds.crossed names it, if it is the controller that builds
PLATFORM = {"cross": "glibc-x86_64-4096", "aarch64": "glibc-aarch64-4096", MUSL: "musl-x86_64-4096"}.get(
    os.environ.get("OFFHEAP_TEST_BUILD", "")
)
EMULATED = PLATFORM == "glibc-aarch64-4096"
#: programs of this machine's C library cannot have it preloaded
FOREIGN = PLATFORM not in (None, "glibc-x86_64-4096")
#: of programs that are preloaded
COMPILER = {"glibc-aarch64-4096": CROSS_GCC, "musl-x86_64-4096": MUSL}.get(PLATFORM or "", "gcc")
FLAGS = ("-std=gnu11", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: runs for OFFHEAP_SOAK_SECONDS (15 unless set; 600 for a real soak)")


def compiled(name: str, sources: list[Path], *options: str, compiler: str = "gcc") -> Path:
    target = BUILD / compiler / name
    newest = max(path.stat().st_mtime for path in [*sources, *SOURCES.glob("*.h")])
    if not target.exists() or target.stat().st_mtime < newest:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        run = MUSL_CC if compiler == MUSL else [compiler]
        command = [*run, *FLAGS, *options, "-o", str(part), *map(str, sources), "-pthread", "-ldl"]
        subprocess.run(command, check=True)
        part.rename(target)
    return target


@pytest.fixture(scope="session")
def library() -> Path:
    """The agent."""
    return builds.crossed("agent", PLATFORM) if PLATFORM else builds.agent()


@pytest.fixture(scope="session")
def unpatched_jemalloc() -> Path:
    """A jemalloc with prof, the distribution's (Debian's 5.3.0 has it)."""
    if FOREIGN:
        pytest.skip("the distribution's jemalloc is for this machine")
    for path in Path("/usr/lib").glob("*/libjemalloc.so.2"):
        environment = {"LD_PRELOAD": str(path), "MALLOC_CONF": "prof:true"}
        tried = subprocess.run(["/bin/true"], env=environment, capture_output=True, check=True)
        if b"Invalid" not in tried.stderr:
            return path
    pytest.skip(f"no jemalloc with prof (apt-get install libjemalloc2); found {ctypes.util.find_library('jemalloc')}")


@pytest.fixture(scope="session")
def jemalloc() -> Path:
    """The jemalloc that the role builds."""
    return builds.crossed("library", PLATFORM) if PLATFORM else builds.library()


def service_program(name: str) -> Path:
    """A program that is preloaded, for the machine of what is preloaded."""
    return compiled(name, [PROGRAMS / f"{name}.c"], "-O2", compiler=COMPILER)


def preloaded(
    library: Path, command: list[str], conf: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program with a jemalloc and without the agent."""
    environment = {**os.environ, "MALLOC_CONF": conf}
    if EMULATED:  # the emulator is a program of this machine
        command = [*EMULATOR, "-E", f"LD_PRELOAD={library}", *command]
    else:
        environment["LD_PRELOAD"] = str(library)
    return subprocess.run(command, env=environment, timeout=timeout, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def workload() -> Path:
    return service_program("workload")


def driver_sources() -> list[Path]:
    return [*sorted(SOURCES.glob("*.c")), PROGRAMS / "fake_jemalloc.c", PROGRAMS / "driver.c"]


@pytest.fixture(scope="session")
def fake_jemalloc() -> Path:
    return compiled("libfake.so", [PROGRAMS / "fake_jemalloc.c"], "-shared", "-fPIC")


@pytest.fixture(scope="session")
def java_classes() -> Path:
    if not shutil.which("javac"):
        pytest.skip("no JDK")
    target = BUILD / "java"
    sources = sorted(PROGRAMS.glob("*.java"))
    if not target.exists() or target.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["javac", "-d", str(target), *map(str, sources)], check=True)
    return target


@pytest.fixture
def start(tmp_path: Path, library: Path, jemalloc: Path) -> Iterator[Callable[..., Service]]:
    """Starts services; whatever of them is left at the end of the test is killed."""
    started: list[Service] = []

    def run(program: Path | str, *arguments: str, **settings: object) -> Service:
        emulator = EMULATOR if EMULATED else []
        service = Service(tmp_path, library, jemalloc, program, arguments, settings, emulator)
        started.append(service)
        return service

    yield run
    for service in started:
        service.kill()


@pytest.fixture(scope="session")
def stress_seconds() -> float:
    """How long the one test runs in which everything happens at once."""
    return float(os.environ.get("OFFHEAP_SOAK_SECONDS", "15"))


@pytest.fixture(scope="session")
def soak_seconds(stress_seconds: float) -> float:
    """How long the other ones run."""
    return max(3.0, stress_seconds / 10)
