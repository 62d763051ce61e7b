# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The life of one host: runs in its own mount namespace and becomes what keeps the host running."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from . import cgroups, fleet, machine
from .access import Host
from .command import run
from .requirements import extend_path
from .settings import Settings

UPPER_SIZE = "2g"

# With --keep-unit nspawn exits with 133 when the guest reboots, and leaves the restart to its service manager: this.
_LOOP = 'status=133; while [ "$status" = 133 ]; do "$@"; status=$?; done; exit "$status"'


def boot(settings: Settings, host: Host) -> None:
    """Mount the host's file system over its image and become its supervisor. Does not return."""
    cgroups.join(settings, host.name)
    _forget_other_namespaces(settings.netns(host.name))
    root = _file_system(settings, host)
    if host.has_kernel:
        machine.run(settings, host, root)
    # nspawn keeps locks and propagated mounts here; on their own tmpfs they go with the namespace
    Path("/run/systemd/nspawn").mkdir(parents=True, exist_ok=True)
    run(["mount", "-t", "tmpfs", "tmpfs", "/run/systemd/nspawn"])
    # cgroup v2 inside, whatever this machine uses
    os.environ["SYSTEMD_NSPAWN_UNIFIED_HIERARCHY"] = "1"
    nspawn = ["systemd-nspawn", "--quiet", f"--directory={root}", "--boot", f"--machine={host.name}"]
    nspawn += [f"--hostname={host.name}", "--register=no", "--keep-unit", "--console=pipe", "--resolv-conf=off"]
    nspawn += ["--timezone=off", "--link-journal=no"]
    nspawn += [f"--network-namespace-path=/run/netns/{settings.netns(host.name)}"]
    # What root on a server may do, and tracing needs: events of the kernel, and programs in it.
    nspawn += ["--capability=CAP_BPF,CAP_PERFMON,CAP_SYSLOG", "--system-call-filter=bpf perf_event_open"]
    nspawn += ["--bind=/sys/kernel/tracing"]
    if os.environ.get("OFFHEAP_LAB_FILTER") == "0":  # what a real host allows, it allows; for nspawn alone, not inside
        os.environ["SYSTEMD_SECCOMP"] = "0"
    os.execv("/bin/sh", ["sh", "-c", _LOOP, f"{settings.name}-{host.name}", *nspawn])


def _file_system(settings: Settings, host: Host) -> Path:
    """The image with what makes it this host; what is written is kept in memory."""
    mount = settings.run / "mnt"
    run(["mount", "-t", "tmpfs", "-o", f"size={UPPER_SIZE},mode=755", settings.netns(host.name), mount])
    for name in ("upper", "work", "root"):
        (mount / name).mkdir()
    overlay = f"lowerdir={host.image},upperdir={mount}/upper,workdir={mount}/work,xino=off"
    run(["mount", "-t", "overlay", "-o", overlay, "overlay", mount / "root"])
    _write_identity(settings, host.name, mount / "root")
    return mount / "root"


def _forget_other_namespaces(own: str) -> None:
    """Unmount other labs' namespaces: our copies would keep them alive after their lab went down."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point = Path(line.split(" ")[1])
        if point.parent == Path("/run/netns") and point.name != own:
            run(["umount", "-l", point], check=False)


def _write_identity(settings: Settings, host: str, root: Path) -> None:
    identity = {
        "hostname": f"{host}\n",
        "hosts": (settings.run / "hosts").read_text(),
        "machine-id": hashlib.md5(f"{settings.name}-{host}".encode()).hexdigest() + "\n",
    }
    for name, text in identity.items():
        (root / "etc" / name).write_text(text)
        (root / "etc" / name).chmod(0o644)
    for suffix in ("", ".pub"):
        shutil.copy(settings.run / f"{host}.hostkey{suffix}", root / f"etc/ssh/ssh_host_ed25519_key{suffix}")
    keys = root / "home/deploy/.ssh"
    keys.mkdir(mode=0o700)
    shutil.copyfile(settings.ssh_key.with_suffix(".pub"), keys / "authorized_keys")
    for path in (keys, keys / "authorized_keys"):
        os.chown(path, 1000, 1000)


if __name__ == "__main__":
    extend_path()
    lab = Settings.from_environment()
    boot(lab, next(host for host in fleet.known(lab) if host.name == sys.argv[1]))
