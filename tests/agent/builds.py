# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The agent and the library that the role builds, by each of its two compilers, for tests and benches.

Each is built once, the library in half a minute, and stays in ``BUILD``.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.offheap.profiler.roles.jemalloc.files import reproduce
from ansible_collections.offheap.profiler.roles.jemalloc.files.reproduce import DEFAULTS, ROLE, VERSION
from ansible_collections.offheap.profiler.tests.agent.cross_sums import ROOT, patched_source

SOURCES = reproduce.AGENT
#: Neither make nor LD_PRELOAD can take a path with a blank; LD_PRELOAD splits at colons, too.
BUILD = ROOT / "build" / "agent"
if re.search(r"[\s:]", str(BUILD)):
    BUILD = Path(tempfile.gettempdir()) / f"offheap-agent-{hashlib.sha256(bytes(ROOT)).hexdigest()[:12]}"
#: for programs of aarch64, and what runs them here
CROSS_GCC, EMULATOR = "aarch64-linux-gnu-gcc", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
#: for programs of musl: their compiler's name here, and the compiler, which leaves no malloc out
MUSL = "musl"
MUSL_CC = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-dynamic"]
MUSL_CC += ["-Wl,--build-id", "-fno-builtin"]
_CARRIED: dict[str, str] = json.loads(reproduce.CARRIED.read_text())


def agent(compiler: str = "gcc") -> Path:
    """Built by gcc, or by a gcc for another machine."""
    target = BUILD / compiler / "liboffheap.so"
    command = ["make", "-s", "-C", str(SOURCES), f"BUILD={target.parent}", f"CC={compiler}"]
    subprocess.run(command, check=True)
    return target


def library(compiler: str = "gcc") -> Path:
    """The release with our patches, built by gcc, or by a gcc for another machine with pages of 4 KiB."""
    if compiler == "gcc":
        return _library(compiler, [], [])
    return _library(compiler, [f"--host={compiler.removesuffix('-gcc')}", "--with-lg-page=12"], [])


def library_for_large_pages() -> Path:
    """As a host with pages of 64 KiB builds it, whose kernel says that a huge page has 512 MiB. Needs root."""
    meminfo = BUILD / "meminfo"
    meminfo.parent.mkdir(parents=True, exist_ok=True)
    meminfo.write_text("Hugepagesize:     524288 kB\n")
    there = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', str(meminfo)]
    return _library("gcc", ["--with-lg-page=16"], there)


def library_without(*names: str) -> Path:
    """As ``library``, without these of our patches."""
    return _library("gcc", [], [], [path for path in reproduce.patches() if path.stem not in names])


def _library(compiler: str, of_machine: list[str], there: list[str], patches: Sequence[Path] | None = None) -> Path:
    """``of_machine`` are more options for configure, which runs ``there``."""
    patches = reproduce.patches() if patches is None else patches
    inputs = [ROLE / "files" / "patched_source.sh", *patches]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:12]
    target = BUILD / compiler / "".join([f"jemalloc-{VERSION}-{digest}", *of_machine]) / "libjemalloc.so.2"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
        source = patched_source(work, patches)
        subprocess.run(["tar", "--extract", "--file", source], cwd=work, check=True)
        options = ["--with-lg-hugepage=21", *of_machine, *DEFAULTS["jemalloc_configure_options"]]
        configure = [*there, "./configure", *options, "EXTRA_CFLAGS=-g0", f"CC={compiler}"]
        for command in (configure, ["make", "-j2", "build_lib_shared"]):
            subprocess.run(command, cwd=work / f"jemalloc-{VERSION}", check=True, stdout=subprocess.DEVNULL)
        (work / f"jemalloc-{VERSION}" / "lib" / target.name).rename(target)
        shutil.rmtree(work)
    return target


def crossed(part: str, platform: str = "glibc-x86_64-4096") -> Path:
    """The ``agent`` or ``library`` as the controller builds it, with the checksum that the role carries."""
    stem = reproduce.library_stem() if part == "library" else reproduce.agent_stem()
    target = BUILD / f"{stem}-{platform}" / ("libjemalloc.so.2" if part == "library" else "liboffheap.so")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
        source = patched_source(work) if part == "library" else SOURCES
        reproduce.built(part, platform, source, work, _CARRIED[f"{stem}-{platform}"])
        with tarfile.open(work / f"{stem}-{platform}-cross.tar.gz") as tarball:
            tarball.extractall(work, filter="data")
        next(work.glob(f"*/**/{target.name}")).rename(target)
        shutil.rmtree(work)
    return target
