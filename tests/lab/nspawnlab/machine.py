# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A host that boots Debian's own kernel in QEMU: with a memory controller, swap, AppArmor, and modules of its own.

Its processor is emulated, since not every machine lends its own: it is some ten times as slow.
"""

from __future__ import annotations

import os
from pathlib import Path

from . import cgroups, command, images
from .access import Host
from .settings import Settings

MEMORY = "3g"
DISK = "4g"  # what is written to it is lost when QEMU ends
_COMMAND_LINE = "root=/dev/vda rw console={console} net.ifnames=0 quiet systemd.show_status=false"
_ENFORCING = "security=selinux selinux=1 enforcing=1"
# The newest processor that QEMU knows. ARM's signs return addresses, as servers' do, in a way that is fast to emulate.
_PROCESSORS = {
    **dict.fromkeys((images.KERNEL, images.SELINUX), ("ttyS0", ["qemu-system-x86_64", "-cpu", "max"])),
    images.ARM: ("ttyAMA0", ["qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on"]),
}
_NETWORK = """\
[Unit]
Before=network.target
[Service]
Type=oneshot
ExecStart=ip addr add {address}/24 dev eth0
ExecStart=ip link set eth0 up
[Install]
WantedBy=multi-user.target
"""


def run(settings: Settings, host: Host, root: Path) -> None:
    """Make a disk of the tree at ``root`` and become the QEMU that boots it. Does not return."""
    unit = root / "etc/systemd/system/lab-network.service"
    unit.write_text(_NETWORK.format(address=settings.address(host.index)))
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / unit.name).symlink_to(f"../{unit.name}")
    if host.suite == images.SELINUX:
        upper = root.parent / "upper"
        own = [f"/{path.relative_to(upper)}" for path in upper.rglob("*")]
        command.run(["chroot", root, *images.LABEL, *own])  # the image has its labels
    disk = settings.run / f"{host.name}.img"
    command.run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, disk, DISK])
    if host.suite == images.SELINUX:  # of the only directory whose label mke2fs forgets
        command.run(["debugfs", "-w", "-R", "ea_set / security.selinux system_u:object_r:root_t:s0", disk])
    (kernel,), (initrd,) = (list((root / "boot").glob(f"{name}-*")) for name in ("vmlinuz", "initrd.img"))
    console, processor = _PROCESSORS[host.suite]
    qemu = [*processor, "-accel", "tcg,thread=multi", "-smp", "2", "-m", MEMORY]
    qemu += ["-nodefaults", "-display", "none", "-serial", "stdio", "-device", "virtio-rng-pci"]
    words = f"{_COMMAND_LINE.format(console=console)} {_ENFORCING if host.suite == images.SELINUX else ''}"
    qemu += ["-kernel", str(kernel), "-initrd", str(initrd), "-append", words]
    qemu += ["-drive", f"file={disk},format=raw,if=virtio,snapshot=on"]
    qemu += ["-netdev", f"tap,id=cable,ifname={settings.link(host.index)},script=no,downscript=no"]
    qemu += ["-device", f"virtio-net-pci,netdev=cable,mac=52:54:00:00:00:{host.index:02x},romfile="]
    cgroups.join(settings, host.name, supervisor=True)
    os.execvp(qemu[0], qemu)
