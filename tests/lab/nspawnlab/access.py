# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""How to reach the hosts: keys, a real known_hosts, an ssh configuration and the Ansible inventory."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from . import images
from .command import run
from .locks import locked
from .settings import Settings

# The frontend behaves differently by host, in turn: leaks fast, leaks slowly, does not leak.
_FRONTEND = (
    {"frontend_rate": 60, "frontend_leak_every": 3},
    {"frontend_rate": 27, "frontend_leak_every": 3},
    {"frontend_rate": 40, "frontend_leak_every": 0},
)


@dataclass(frozen=True)
class Host:
    """One host of the lab; ``index`` counts from 1."""

    index: int
    name: str
    suite: str
    image: Path

    @property
    def has_kernel(self) -> bool:
        """Whether it boots a kernel of its own, in QEMU."""
        return self.suite in images.MACHINES


def write(settings: Settings, hosts: list[Host]) -> None:
    """Write everything that a client needs, before any host boots."""
    settings.ssh_key.parent.mkdir(parents=True, exist_ok=True)
    with locked(settings.ssh_key.parent / ".lock"):  # all labs share it
        if not settings.ssh_key.exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "offheap-lab", "-f", settings.ssh_key])
    known: list[str] = []
    names = ["127.0.0.1 localhost"]
    for host in hosts:
        key = settings.run / f"{host.name}.hostkey"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", key])
        public = " ".join(key.with_suffix(".hostkey.pub").read_text().split()[:2])
        known.append(f"{settings.address(host.index)},{host.name} {public}")
        names.append(f"{settings.address(host.index)} {host.name}")
    (settings.run / "hosts").write_text("\n".join(names) + "\n")
    settings.known_hosts.write_text("\n".join(known) + "\n")
    settings.ssh_config.write_text(_ssh_config(settings, hosts))
    settings.inventory.write_text(_inventory(settings, hosts))


def ssh_command(settings: Settings, host: str, command: list[str]) -> list[str]:
    """The argv that runs ``command`` (or a shell) on ``host``. As with ssh itself, words are joined by spaces."""
    return ["ssh", "-F", str(settings.ssh_config), host, *command]


def _ssh_config(settings: Settings, hosts: list[Host]) -> str:
    options = {
        "User": "deploy",
        "IdentityFile": settings.ssh_key,
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": settings.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "GSSAPIAuthentication": "no",
        "LogLevel": "ERROR",
    }
    lines: list[str] = []
    for host in hosts:
        lines += [f"Host {host.name}", f"  HostName {settings.address(host.index)}"]
    lines += [f"Host app* {settings.subnet}.*", *(f"  {key} {value}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


def _inventory(settings: Settings, hosts: list[Host]) -> str:
    ssh_options = {
        "UserKnownHostsFile": settings.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
    }
    group = {
        "ansible_user": "deploy",
        "ansible_ssh_private_key_file": settings.ssh_key,
        "ansible_ssh_common_args": " ".join(f"-o {shlex.quote(f'{k}={v}')}" for k, v in ssh_options.items()),
        "ansible_python_interpreter": "/usr/bin/python3",
        "lab_workloads": settings.workloads,
        "lab_sources": settings.directory / "sources",
    }
    lines = ["[fleet]"]
    for host in hosts:
        facts = {"ansible_host": settings.address(host.index), "suite": host.suite}
        facts |= {key: str(value) for key, value in _FRONTEND[(host.index - 1) % len(_FRONTEND)].items()}
        lines.append(" ".join([host.name, *(f"{key}={value}" for key, value in facts.items())]))
    lines += ["", "[fleet:vars]", *(f"{key}={value}" for key, value in group.items())]
    return "\n".join(lines) + "\n"
