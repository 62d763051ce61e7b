# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Installs Debian's packages into a running host, which has no network of its own to fetch them with."""

from __future__ import annotations

from pathlib import Path

from . import cgroups
from .access import Host
from .command import run
from .settings import LabError, Settings

# In the host's namespaces but for the network's, which is this machine's: the packages' scripts find the host's
# systemd, so that services start as on any host. Names resolve only meanwhile.
_INSTALL = """
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
cat > /etc/resolv.conf
trap 'rm -f /etc/resolv.conf' EXIT
[ -e /var/cache/apt/pkgcache.bin ] || apt-get -q update
apt-get -q install -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@"
apt-get clean
"""


def install(settings: Settings, host: Host, packages: list[str]) -> None:
    """Install ``packages`` and start their services, as Debian does.

    Raises LabError if the host is dead or has a kernel of its own, or with the end of what APT said if it fails.
    """
    if host.has_kernel:
        raise LabError(f"{host.name} has a kernel of its own: what it has is in its image's recipe")
    init = cgroups.init_process(settings, host.name)
    if init is None:
        raise LabError(f"{host.name} is dead: nothing can be installed")
    enter = ["nsenter", f"--target={init}", "--mount", "--uts", "--ipc", "--pid", "--"]
    run([*enter, "sh", "-c", _INSTALL, "sh", *packages], stdin=Path("/etc/resolv.conf").read_text())
