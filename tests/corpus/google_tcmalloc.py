# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Google's tcmalloc with its writer of profiles, built from the sources that a crate brings.

The crate is written for a cargo of 2025 or later (1.85), and the writer needs protobuf's compiler and library.
"""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from ansible_collections.offheap.profiler.tests.corpus.crowd_programs import PROGRAMS, built

VERSION = "0.1.14"
_CRATE = "libtcmalloc-sys"
_PLACE = PROGRAMS.parent / "packages" / f"{_CRATE}-{VERSION}"
_MANIFEST = f"""\
[package]
name = "only-to-fetch"
version = "0.0.0"
edition = "2021"
[dependencies]
{_CRATE} = "={VERSION}"
"""
# Beside what the crate itself compiles: malloc and its kin, and the writer.
_MORE = ("tcmalloc.cc", "profile_marshaler.cc", "internal/profile_builder.cc")


@cache
def program() -> Path:
    """The program of crowd_programs, with it linked in. Compiling takes minutes, so the objects are kept."""
    source = _fetched()
    made = _PLACE / "made"
    proto = "tcmalloc/internal/profile.proto"
    made.mkdir(exist_ok=True)
    subprocess.run(["protoc", "-I", source / "tcmalloc", f"--cpp_out={made}", source / "tcmalloc" / proto], check=True)
    listed = re.findall(r'"c_src/([^"]+\.(?:cc|S))"', (source.parent / "build.rs").read_text())
    files = [source / name for name in listed if "bridge" not in name]
    files += [source / "tcmalloc" / "tcmalloc" / name for name in _MORE]
    files.append((made / proto).with_suffix(".pb.cc"))
    includes = [f"-I{source}/abseil-cpp", f"-I{source}/tcmalloc", f"-I{made}"]

    def compiled(file: Path) -> Path:
        made_of_it = made / f"{'-'.join(file.parts[-5:])}.o"
        if not made_of_it.exists():
            options = ["-std=c++17", "-O1", "-w", "-DNDEBUG", "-DTCMALLOC_INTERNAL_8K_PAGES", "-fno-omit-frame-pointer"]
            command: list[str | Path] = ["g++", *options, *includes, "-c", file, "-o", made_of_it.with_suffix(".part")]
            subprocess.run(command, check=True)
            made_of_it.with_suffix(".part").rename(made_of_it)
        return made_of_it

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(compiled, files)]
    return built("crowd_google", *includes, *objects, "-lprotobuf", "-pthread")


def _fetched() -> Path:
    """The sources in C++."""
    if not (_PLACE / "cargo").exists():
        (_PLACE / "src").mkdir(parents=True, exist_ok=True)
        (_PLACE / "src" / "lib.rs").write_text("")
        (_PLACE / "Cargo.toml").write_text(_MANIFEST)
        environment = {**os.environ, "CARGO_HOME": str(_PLACE / "cargo")}
        subprocess.run(["cargo", "fetch", "--quiet"], cwd=_PLACE, env=environment, check=True)
    (source,) = _PLACE.glob(f"cargo/registry/src/*/{_CRATE}-{VERSION}/c_src")
    return source
