# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Build the agent and the programs that try it, and run them as a service would."""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.agent.service import Service
from ansible_collections.offheap.profiler.tests.lab.nspawnlab import aptsource
from ansible_collections.offheap.profiler.tests.lab.nspawnlab.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles" / "jemalloc"
SOURCES = ROLE / "files" / "agent"
PROGRAMS = Path(__file__).resolve().parent / "programs"
BUILD = ROOT / "build" / "agent"
FLAGS = ("-std=gnu11", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: runs for OFFHEAP_SOAK_SECONDS (30 unless set; 600 for a real soak)")


def compiled(name: str, sources: list[Path], *options: str, compiler: str = "gcc") -> Path:
    target = BUILD / name
    newest = max(path.stat().st_mtime for path in [*sources, *SOURCES.glob("*.h")])
    if not target.exists() or target.stat().st_mtime < newest:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        command = [compiler, *FLAGS, *options, "-o", str(part), *map(str, sources), "-pthread", "-ldl"]
        subprocess.run(command, check=True)
        part.rename(target)
    return target


@pytest.fixture(scope="session")
def library() -> Path:
    """The agent: OFFHEAP_TEST_AGENT, as the controller builds it for instance, or built here by gcc."""
    if os.environ.get("OFFHEAP_TEST_AGENT"):
        return Path(os.environ["OFFHEAP_TEST_AGENT"])
    subprocess.run(["make", "-s", "-C", str(SOURCES), f"BUILD={BUILD}"], check=True)
    return BUILD / "liboffheap.so"


@pytest.fixture(scope="session")
def jemalloc() -> Path:
    """A jemalloc with prof: OFFHEAP_TEST_JEMALLOC, or the distribution's (Debian's 5.3.0 has it)."""
    names = [os.environ.get("OFFHEAP_TEST_JEMALLOC"), *Path("/usr/lib").glob("*/libjemalloc.so.2")]
    for name in names:
        if name and Path(name).exists():
            environment = {"LD_PRELOAD": str(name), "MALLOC_CONF": "prof:true"}
            tried = subprocess.run(["/bin/true"], env=environment, capture_output=True, check=True)
            if b"Invalid" not in tried.stderr:
                return Path(name)
    pytest.skip(f"no jemalloc with prof (apt-get install libjemalloc2); found {ctypes.util.find_library('jemalloc')}")


@pytest.fixture(scope="session")
def patched_jemalloc() -> Path:
    """The jemalloc that the role builds: the release with our patches (the first time, half a minute)."""
    variables = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    version = defaults["jemalloc_version"]
    script, patches = ROLE / "files" / "patched_source.sh", sorted((ROLE / "files" / "patches" / version).iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in [script, *patches])).hexdigest()[:12]
    target = BUILD / f"jemalloc-{version}-{digest}" / "libjemalloc.so.2"
    if not target.exists():
        release = aptsource.fetch_jemalloc(Settings.from_environment())
        assert hashlib.sha256(release.read_bytes()).hexdigest() == variables["_jemalloc_checksums"][version]
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
        source = work / "source.tar"
        subprocess.run([script, sys.executable, release, f"jemalloc-{version}", source, *patches], check=True)
        subprocess.run(["tar", "--extract", "--file", source], cwd=work, check=True)
        configure = ["./configure", *defaults["jemalloc_configure_options"], "EXTRA_CFLAGS=-g0"]
        for command in (configure, ["make", "-j2", "build_lib_shared"]):
            subprocess.run(command, cwd=work / f"jemalloc-{version}", check=True, stdout=subprocess.DEVNULL)
        (work / f"jemalloc-{version}" / "lib" / target.name).rename(target)
        shutil.rmtree(work)
    return target


@pytest.fixture(scope="session")
def workload() -> Path:
    return compiled("workload", [PROGRAMS / "workload.c"], "-O2")


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
        service = Service(tmp_path, library, jemalloc, program, arguments, settings)
        started.append(service)
        return service

    yield run
    for service in started:
        service.kill()


@pytest.fixture(scope="session")
def stress_seconds() -> float:
    """How long the one test runs in which everything happens at once."""
    return float(os.environ.get("OFFHEAP_SOAK_SECONDS", "30"))


@pytest.fixture(scope="session")
def soak_seconds(stress_seconds: float) -> float:
    """How long the other ones run."""
    return stress_seconds / 10
