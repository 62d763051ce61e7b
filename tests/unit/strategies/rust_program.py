# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Rust programs with tikv-jemallocator, and the sources of crates, by Debian's cargo, which knows crates.io's sparse
index by an option.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path

_CACHE = Path(__file__).resolve().parents[3] / ".cache"
_SPARSE = {
    "RUSTC_BOOTSTRAP": "1",
    "CARGO_UNSTABLE_SPARSE_REGISTRY": "true",
    "CARGO_REGISTRIES_CRATES_IO_PROTOCOL": "sparse",
}


def built(source: Path, directory: Path) -> Path:
    """The program of a crate, in ``directory``, with Debian's jemalloc linked in. Compiling takes a while, so what was
    compiled is kept."""
    (jemalloc,) = glob.glob("/usr/lib/*/libjemalloc_pic.a")
    options = ("--quiet", "--locked", "--release", "--target-dir", str(_CACHE / "rust"))
    _cargo(source, "build", *options, JEMALLOC_OVERRIDE=jemalloc)
    return Path(shutil.copy2(_CACHE / "rust" / "release" / source.name, directory))


def sources(source: Path, directory: Path) -> Path:
    """Those of all that a crate depends on, each in a folder of its name in ``directory``."""
    _cargo(source, "vendor", "--quiet", "--locked", str(directory))
    return directory


def _cargo(source: Path, *words: str, **variables: str) -> None:
    environment = {**os.environ, **_SPARSE, "CARGO_HOME": str(_CACHE / "cargo"), "RUSTC": "/usr/bin/rustc"}
    command = ["/usr/bin/cargo", *words]
    subprocess.run(command, cwd=source, env={**environment, **variables}, check=True, stdout=subprocess.PIPE)
