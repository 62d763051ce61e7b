# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Rust programs with tikv-jemallocator, built by Debian's cargo, which knows crates.io's sparse index by an option."""

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
    environment = {**os.environ, **_SPARSE, "CARGO_HOME": str(_CACHE / "cargo"), "RUSTC": "/usr/bin/rustc"}
    subprocess.run(
        ["/usr/bin/cargo", "build", "--quiet", "--locked", "--release", "--target-dir", _CACHE / "rust"],
        cwd=source,
        env={**environment, "JEMALLOC_OVERRIDE": jemalloc},
        check=True,
    )
    return Path(shutil.copy2(_CACHE / "rust" / "release" / source.name, directory))
