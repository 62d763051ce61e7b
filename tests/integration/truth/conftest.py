# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Builds the programs of the truth suite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.tests.agent.builds import BUILD
from ansible_collections.offheap.profiler.tests.agent.conftest import (
    jemalloc,
    library,
)
from ansible_collections.offheap.profiler.tests.integration.truth.observed import Program

__all__ = ["jemalloc", "library"]  # fixtures

PROGRAMS = Path(__file__).resolve().parent / "programs"
FLAGS = ["-O2", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-pthread"]


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    """All programs of the suite, by name; each is built when its command is asked for."""
    target = BUILD / "truth"
    target.mkdir(parents=True, exist_ok=True)
    found = [
        Program("c", "remember_request", lambda: [_built("truth", "truth.c"), "leak"], {}),
        Program("threads", "serve_connection", lambda: [_built("truth", "truth.c"), "threads"], {}),
        Program("c++", "shop::Cart::remove", lambda: [_built("truth++", "truth.cpp", compiler="g++")], {}),
        Program("python", "parse_document", _python, {"PYTHONPATH": str(target)}),
        Program("inflater", "Java_java_util_zip_Inflater", lambda: _java("inflater"), {}),
        Program("direct", "Unsafe_AllocateMemory", lambda: _java("direct"), {}),
        Program("jni", "Java_Truth_keepNative", lambda: _java("jni", _jni()), {}),
        Program("cache", "", lambda: [_built("truth", "truth.c"), "cache"], {}),
        Program("sawtooth", "", lambda: [_built("truth", "truth.c"), "sawtooth"], {}),
        Program("arena", "", lambda: [_built("truth", "truth.c"), "arena"], {}),
        Program("classes", "", lambda: _java("classes"), {}),
    ]
    return {program.name: program for program in found}


def _built(name: str, source: str, *options: str, compiler: str = "gcc") -> str:
    return _made(
        BUILD / "truth" / name, source, lambda part: [compiler, *FLAGS, *options, "-o", part, PROGRAMS / source]
    )


def _made(target: Path, source: str, command: Callable[[Path], list[str | Path]]) -> str:
    if not target.exists() or target.stat().st_mtime < (PROGRAMS / source).stat().st_mtime:
        part = target.with_name(f"{os.getpid()}-{target.name}")
        subprocess.run(command(part), check=True)
        if target.is_dir():
            shutil.rmtree(target)
        part.rename(target)
    return str(target)


def _python() -> list[str]:
    headers = sysconfig.get_path("include")
    if not (Path(headers) / "Python.h").exists():
        pytest.skip(f"no Python.h in {headers}")
    _built("truth_python.so", "truth_python.cpp", "-shared", "-fPIC", f"-I{headers}", compiler="g++")
    return [os.path.realpath(sys.executable), str(PROGRAMS / "truth.py")]


def _jdk() -> Path:
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no JDK")
    return Path(javac).resolve().parents[1]


def _jni() -> str:
    return _built("libtruth_jni.so", "truth_jni.c", "-shared", "-fPIC")


def _java(*arguments: str) -> list[str]:
    jdk = _jdk()
    classes = _made(
        BUILD / "truth" / "classes",
        "Truth.java",
        lambda part: [jdk / "bin" / "javac", "-d", part, PROGRAMS / "Truth.java"],
    )
    options = ["-XX:+PreserveFramePointer", "-XX:+UseSerialGC", "-Xmx64m", "-XX:MaxDirectMemorySize=1g"]
    return [str(jdk / "bin" / "java"), *options, "-cp", classes, "Truth", *arguments]
