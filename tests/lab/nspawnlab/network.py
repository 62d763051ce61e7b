# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One bridge, and for each host a network namespace with a fixed address, ready before the host boots."""

from __future__ import annotations

import json
from pathlib import Path

from .access import Host
from .command import run
from .settings import LabError, Settings


def create(settings: Settings, hosts: list[Host]) -> None:
    """Create the bridge and one namespace per host, or a tap for QEMU; hosts reach only each other and this machine."""
    taken = json.loads(run(["ip", "-j", "-4", "addr", "show"]).stdout)
    for link in taken:
        for address in link.get("addr_info", []):
            if str(address.get("local", "")).startswith(f"{settings.subnet}."):
                raise LabError(
                    f"{settings.subnet}.0/24 is in use by {link['ifname']}: name a free /24 with OFFHEAP_LAB_NET"
                )
    root = [
        f"link add {settings.bridge} type bridge",
        f"addr add {settings.gateway}/24 dev {settings.bridge}",
        f"link set {settings.bridge} up",
    ]
    for host in hosts:
        cable = settings.link(host.index)
        if host.has_kernel:
            root.append(f"tuntap add {cable} mode tap")
        else:
            netns = settings.netns(host.name)
            root += [f"netns add {netns}", f"link add {cable} type veth peer name eth0 netns {netns}"]
        root += [f"link set {cable} master {settings.bridge} up"]
    run(["ip", "-batch", "-"], stdin="\n".join(root) + "\n")
    for host in hosts:
        if not host.has_kernel:
            inner = ["link set lo up", f"addr add {settings.address(host.index)}/24 dev eth0", "link set eth0 up"]
            run(["ip", "-n", settings.netns(host.name), "-batch", "-"], stdin="\n".join(inner) + "\n")


def plug(settings: Settings, index: int, connected: bool) -> None:
    """Connect host number ``index`` to the bridge, or disconnect it: packets then vanish, as in a broken network."""
    run(["ip", "link", "set", settings.link(index), "up" if connected else "down"])


def namespaces(settings: Settings) -> list[str]:
    """Names of the lab's network namespaces."""
    return sorted(path.name for path in Path("/run/netns").glob(f"{settings.name}-app*"))


def links(settings: Settings) -> list[str]:
    """Names of the lab's interfaces on this machine."""
    names = [path.name for path in Path("/sys/class/net").iterdir()]
    return sorted(name for name in names if name == settings.bridge or _is_cable(settings, name))


def destroy(settings: Settings) -> None:
    """Remove what create() made. Links go first: a namespace lives on while any mount namespace holds it."""
    for name in links(settings):
        run(["ip", "link", "del", name], check=False)
    for name in namespaces(settings):
        run(["ip", "netns", "del", name], check=False)


def _is_cable(settings: Settings, name: str) -> bool:
    prefix, number = name.rpartition("-")[::2]
    return prefix == settings.name and number.isdigit()
