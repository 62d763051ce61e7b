# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The workloads, compiled in the oldest image: they run on every host, and no other host needs a compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from . import images
from .command import run_logged
from .console import say
from .locks import locked
from .settings import Settings

SOURCES = Path(__file__).resolve().parent.parent / "workloads"

# In its own mount namespace, with the image as a lower layer, so that it does not change.
_COMPILE = """
set -eu
mount -t tmpfs -o mode=755 tmpfs "$SCRATCH"
mkdir "$SCRATCH/upper" "$SCRATCH/work" "$SCRATCH/root"
mount -t overlay -o "lowerdir=$IMAGE,upperdir=$SCRATCH/upper,workdir=$SCRATCH/work" overlay "$SCRATCH/root"
mkdir "$SCRATCH/root/src" "$SCRATCH/root/out"
mount --bind "$SOURCES" "$SCRATCH/root/src"
mount --bind "$OUT" "$SCRATCH/root/out"
mount -t proc proc "$SCRATCH/root/proc"
mount --bind /dev "$SCRATCH/root/dev"
exec chroot "$SCRATCH/root" make --no-print-directory -C /src BUILD=/out/build DESTDIR=/out/root install
"""


def build_missing(settings: Settings) -> Path:
    """Build the workloads unless their sources and image are unchanged; returns the tree to install."""
    image = images.image_path(settings, images.BUILDER)
    files = sorted(path for path in SOURCES.rglob("*") if path.is_file() and path.suffix not in (".yml", ".j2"))
    digest = hashlib.sha256(image.name.encode())
    for path in files:
        digest.update(f"{path.relative_to(SOURCES)} {path.stat().st_mode:o} ".encode() + path.read_bytes())
    directory = settings.directory / "workloads"
    target = directory / digest.hexdigest()[:12]
    with locked(directory / ".lock"):
        if not target.exists():
            begin = time.monotonic()
            _compile(image, directory, target)
            say(f"workloads compiled in {time.monotonic() - begin:.1f} s")
        link = directory / ".current"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        os.replace(link, settings.workloads)
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink() and path != target:
                shutil.rmtree(path)
    return target


def _compile(image: Path, directory: Path, target: Path) -> None:
    say("compiling the workloads in the image bullseye")
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=directory) as name:
        unfinished = Path(name)
        (unfinished / "scratch").mkdir()
        out = unfinished / "out"
        out.mkdir()
        where = {"IMAGE": image, "SOURCES": SOURCES, "OUT": out, "SCRATCH": unfinished / "scratch"}
        env = {**{key: str(value) for key, value in where.items()}, "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _COMPILE]
        run_logged(argv, directory / "build.log", env)
        shutil.rmtree(out / "build")
        shutil.make_archive(str(out / "workloads"), "tar", out / "root", owner="root", group="root")
        (out / "version").write_text(f"{target.name}\n")
        os.rename(out, target)
