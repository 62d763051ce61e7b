# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the machine must have: root, Debian's APT, and a few packages, which are installed if missing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .command import run
from .console import say
from .settings import LabError

# program (or file) -> its Debian package
PACKAGES = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "unshare": "util-linux",
    "mount": "mount",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}

# for a host with a kernel of its own, and for one of 64-bit ARM
MACHINE_PACKAGES = {"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"}
ARM_PACKAGES = {
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-aarch64-static": "qemu-user-static",
    "arch-test": "arch-test",
    "mke2fs": "e2fsprogs",
}


def extend_path() -> None:
    """Add the sbin directories, which are not in a plain shell's PATH on Debian."""
    have = os.environ.get("PATH", "").split(":")
    missing = [d for d in ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin") if d not in have]
    os.environ["PATH"] = ":".join([d for d in have if d] + missing)


def require_machine() -> None:
    """Raise LabError with status 2 and one clear line if a lab cannot run here."""
    if os.geteuid() != 0:
        raise LabError("needs root to mount, make network namespaces and boot containers (try sudo)", 2)
    if not Path("/etc/debian_version").exists() or not shutil.which("apt-get"):
        raise LabError("needs a Debian machine (12 or later): apt-get is missing, or this is another system", 2)
    if unified_root() is None:
        raise LabError("needs cgroup v2 mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified", 2)


def unified_root() -> Path | None:
    """Where cgroup v2 is mounted."""
    for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (path / "cgroup.controllers").exists():
            return path
    return None


def install_packages(wanted: dict[str, str] = PACKAGES) -> None:
    """Install what is missing of ``wanted`` with the machine's own APT."""
    missing = sorted({package for need, package in wanted.items() if not _have(need)})
    if not missing:
        return
    say(f"installing {' '.join(missing)} (apt-get)")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    if run(install, check=False).returncode != 0:
        say("updating APT's lists first (apt-get update)")
        run(["apt-get", "update", "-q"])
        run(install)


def _have(need: str) -> bool:
    return Path(need).exists() if need.startswith("/") else shutil.which(need) is not None
