# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Golden images, one directory per release, built once per recipe and never changed afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import aptsource
from .command import run, run_logged
from .console import say
from .locks import locked
from .settings import LabError, Settings

CUSTOMIZE = Path(__file__).resolve().parent.parent / "image" / "customize.sh"

_BASE = (
    "systemd systemd-sysv dbus libpam-systemd openssh-server sudo python3 iproute2 procps rsync libcap2-bin"
    " ca-certificates"
).split()

# The JRE that services of each release would use. Only the oldest has a compiler: what is built there also loads on the
# newer ones, which stand for production hosts, often without a compiler.
_EXTRA = {
    "bullseye": "gcc make libc6-dev bzip2 openjdk-17-jdk-headless".split(),
    "bookworm": ["openjdk-17-jre-headless", "bpfcc-tools", "linux-perf"],
    "trixie": ["openjdk-21-jre-headless", "nodejs"],
}
SUITES = tuple(_EXTRA)
BUILDER = "bullseye"

# Hosts that boot Debian's kernel in QEMU: trixie with what a kernel needs, and AppArmor; the same with SELinux, and a
# service that its policy confines; and the first for 64-bit ARM.
KERNEL, SELINUX, ARM = "kernel", "selinux", "arm"
MACHINES = (KERNEL, SELINUX, ARM)
_MACHINE = "initramfs-tools kmod openjdk-21-jre-headless".split()
_EXTRA[KERNEL] = ["linux-image-cloud-amd64", *_MACHINE, "apparmor"]
_EXTRA[SELINUX] = ["linux-image-cloud-amd64", *_MACHINE, *"selinux-policy-default policycoreutils redis-server".split()]
_EXTRA[ARM] = ["linux-image-cloud-arm64", *_MACHINE, "apparmor"]
_RELEASES = dict.fromkeys(MACHINES, "trixie")

# Hosts of what is newer than all of these, and of Ubuntu, from the mirror that OFFHEAP_LAB_UBUNTU names.
_EXTRA["sid"] = ["openjdk-25-jre-headless"]
_EXTRA["jammy"] = ["openjdk-17-jre-headless"]
_EXTRA["noble"] = ["openjdk-21-jre-headless", "apparmor"]
_UBUNTU = ("jammy", "noble")
_UBUNTU_KEYS = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
EVERY = tuple(_EXTRA)
# The program that gives files the labels of SELinux; with -m, whatever the machine that builds has mounted.
LABEL = ("setfiles", "-m", "-F", "/etc/selinux/default/contexts/files/file_contexts")

_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")


@dataclass(frozen=True)
class Recipe:
    """What an image of ``suite`` is made of."""

    suite: str
    packages: tuple[str, ...]
    left_out: tuple[str, ...]
    customize: str

    @classmethod
    def of(cls, suite: str) -> Recipe:
        if suite not in _EXTRA:
            raise LabError(f"unknown suite {suite!r}: choose from {', '.join(_EXTRA)}")
        return cls(suite, (*_BASE, *_EXTRA[suite]), _LEFT_OUT, CUSTOMIZE.read_text())

    @property
    def release(self) -> str:
        """Debian's."""
        return _RELEASES.get(self.suite, self.suite)

    @property
    def digest(self) -> str:
        """Changes whenever the image would."""
        text = json.dumps([self.release, self.packages, self.left_out, self.customize])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def image_path(settings: Settings, suite: str) -> Path:
    """The path of the image of ``suite`` for today's recipe, built or not."""
    return settings.images / f"{suite}-{Recipe.of(suite).digest}"


def build_missing(settings: Settings, suites: list[str]) -> None:
    """Build the missing images of ``suites`` in parallel; raises LabError if one fails."""
    settings.images.mkdir(parents=True, exist_ok=True)
    with locked(settings.images / ".lock"):
        missing = [suite for suite in dict.fromkeys(suites) if not image_path(settings, suite).exists()]
        if not missing:
            return
        mirror, transport = aptsource.mirror(), aptsource.transport_options()
        say(f"building images from {mirror} (about a minute): {', '.join(missing)}")
        _remove_unfinished(settings)
        with ThreadPoolExecutor(len(missing)) as pool:
            for future in [pool.submit(_build, settings, Recipe.of(suite), mirror, transport) for suite in missing]:
                future.result()
        _prune(settings)


def _build(settings: Settings, recipe: Recipe, mirror: str, transport: list[str]) -> None:
    begin = time.monotonic()
    target = image_path(settings, recipe.suite)
    unfinished = Path(tempfile.mkdtemp(prefix=f".unfinished-{recipe.suite}-", dir=settings.images))
    tree = unfinished / "root"
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(recipe.packages)}"]
    argv += [f"--aptopt={option}" for option in ['Acquire::Languages "none";', *transport]]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in recipe.left_out]
    # the JRE's update-alternatives fails without this directory
    argv += ['--essential-hook=mkdir -p "$1/usr/share/man/man1"']
    argv += [f"--customize-hook={CUSTOMIZE}"]
    if recipe.suite == SELINUX:
        argv += [f'--customize-hook=chroot "$1" {" ".join(LABEL)} /']
    foreign: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if recipe.suite == ARM:
        argv.append("--architectures=arm64")
        foreign = _programs_of_arm_run()
    try:
        with foreign:
            run_logged(
                [*argv, recipe.release, tree, *_sources(recipe, mirror)], settings.images / f"{recipe.suite}.log"
            )
        os.rename(tree, target)
    finally:
        _remove_tree(unfinished)
    size = run(["du", "-sm", target]).stdout.split()[0]
    say(f"image {recipe.suite} built in {time.monotonic() - begin:.0f} s, {size} MB")


def _sources(recipe: Recipe, mirror: str) -> list[str]:
    """As mmdebstrap takes them. Raises LabError if this machine has no way to Ubuntu's."""
    if recipe.suite not in _UBUNTU:
        return [mirror]
    ubuntu = os.environ.get("OFFHEAP_LAB_UBUNTU", "")
    if not ubuntu or not Path(_UBUNTU_KEYS).exists():
        raise LabError(
            f"{recipe.suite} needs a mirror of Ubuntu in OFFHEAP_LAB_UBUNTU, and its keys in {_UBUNTU_KEYS}", 2
        )
    pockets = (recipe.release, f"{recipe.release}-updates")
    return [f"deb [signed-by={_UBUNTU_KEYS}] {ubuntu} {pocket} main universe" for pocket in pockets]


@contextlib.contextmanager
def _programs_of_arm_run() -> Iterator[None]:
    """Tells the kernel to run them by QEMU, where no systemd has done so."""
    kernel = Path("/proc/sys/fs/binfmt_misc")
    if (kernel / "qemu-aarch64").exists():
        yield
        return
    mounted = (kernel / "register").exists()
    if not mounted:
        run(["mount", "-t", "binfmt_misc", "binfmt_misc", kernel])
    (kernel / "register").write_text(Path("/usr/lib/binfmt.d/qemu-aarch64.conf").read_text())
    try:
        yield
    finally:
        (kernel / "qemu-aarch64").write_text("-1")
        if not mounted:
            run(["umount", kernel])


def _remove_unfinished(settings: Settings) -> None:
    """Remove what a killed build left behind."""
    for path in settings.images.glob(".unfinished-*"):
        _remove_tree(path)


def _prune(settings: Settings) -> None:
    """Remove images of former recipes, unless a running lab of any name uses them."""
    used = " ".join(state.read_text() for state in settings.directory.glob("run*/lab.json"))
    current = {image_path(settings, suite).name for suite in _EXTRA}
    for path in settings.images.glob("*-*"):
        if path.is_dir() and path.name not in current and str(path) not in used:
            say(f"removing the outdated image {path.name}")
            _remove_tree(path)


def _remove_tree(path: Path) -> None:
    """Remove a tree in which a killed mmdebstrap may have left mounts."""
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if line.split(" ")[1].startswith(f"{path}/"):
            run(["umount", "-l", line.split(" ")[1]], check=False)
    run(["rm", "-rf", "--one-file-system", path])
