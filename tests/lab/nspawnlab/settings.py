# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What identifies a lab: everything that two labs on one machine must not share is derived from this."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

MAX_HOSTS = 16


class LabError(Exception):
    """Something that the lab cannot do; the message is one line that says what it needs."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Settings:
    """One lab. ``directory`` holds what outlives it (images, keys, sources), ``run`` what does not."""

    name: str
    directory: Path
    subnet: str

    @classmethod
    def from_environment(cls) -> Settings:
        """OFFHEAP_LAB_NAME, OFFHEAP_LAB_DIR and OFFHEAP_LAB_NET (three octets), all with defaults."""
        name = os.environ.get("OFFHEAP_LAB_NAME", "offheap")
        if not re.fullmatch(r"[a-z][a-z0-9]{0,8}", name):
            raise LabError(f"OFFHEAP_LAB_NAME is {name!r}: needs a letter and up to eight letters or digits")
        digest = hashlib.sha256(name.encode()).digest()
        default = "10.77.0" if name == "offheap" else f"10.{78 + digest[0] % 100}.{digest[1]}"
        subnet = os.environ.get("OFFHEAP_LAB_NET", default)
        if not re.fullmatch(r"\d{1,3}\.\d{1,3}\.\d{1,3}", subnet):
            raise LabError(f"OFFHEAP_LAB_NET is {subnet!r}: needs the first three octets of a free /24, like 10.77.0")
        directory = Path(os.environ.get("OFFHEAP_LAB_DIR", "/var/cache/offheap-lab"))
        return cls(name, directory.absolute(), subnet)

    @property
    def run(self) -> Path:
        """State of the running lab; gone after ``lab down``."""
        return self.directory / ("run" if self.name == "offheap" else f"run-{self.name}")

    @property
    def inventory(self) -> Path:
        return self.run / "inventory.ini"

    @property
    def ssh_config(self) -> Path:
        return self.run / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.run / "known_hosts"

    @property
    def ssh_key(self) -> Path:
        return self.directory / "keys" / "id_ed25519"

    @property
    def images(self) -> Path:
        return self.directory / "images"

    @property
    def workloads(self) -> Path:
        """A link to the newest build of the workloads."""
        return self.directory / "workloads" / "current"

    @property
    def bridge(self) -> str:
        return f"{self.name}-br"

    @property
    def gateway(self) -> str:
        return f"{self.subnet}.1"

    def address(self, index: int) -> str:
        """IPv4 address of host number ``index``, counted from 1."""
        return f"{self.subnet}.{10 + index}"

    def link(self, index: int) -> str:
        """The bridge's end of a host's cable. Interface names have at most 15 characters."""
        return f"{self.name}-{index}"

    def netns(self, host: str) -> str:
        return f"{self.name}-{host}"
