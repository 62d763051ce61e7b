# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The lab and its hosts as the tests see them."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

LAB = Path(__file__).resolve().parents[1] / "lab" / "lab"
PREPARE = LAB.parent / "workloads" / "prepare.yml"

T = TypeVar("T")


def wait_for(fact: Callable[[], T], what: str, timeout: float = 60, interval: float = 0.25) -> T:
    """Ask until the answer is true, and return it; fails with `what` and the last answer after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := fact()):
        assert time.monotonic() < deadline, f"after {timeout:.0f} s still not: {what} (last answer: {answer!r})"
        time.sleep(interval)
    return answer


@dataclass(frozen=True)
class Lab:
    """One lab, told from others by its name (see tests/lab/lab --help)."""

    name: str

    def command(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a subcommand of the lab; a failed one fails the test with all that it said."""
        env = {**os.environ, "OFFHEAP_LAB_NAME": self.name}
        done = subprocess.run(
            [str(LAB), *args], env=env, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False
        )
        assert not check or done.returncode == 0, f"lab {shlex.join(args)}: {done.stdout}{done.stderr}"
        return done

    @cached_property
    def inventory(self) -> Path:
        return Path(self.command("inventory").stdout.strip())

    def down(self) -> None:
        """Take the lab down, with our connections to its hosts. Works also when it is not up."""
        if self.inventory.exists():
            for name in self.hosts():
                self.host(name).disconnect()
        self.command("down")

    def hosts(self) -> dict[str, str]:
        """Names of the hosts and their suites."""
        parser = configparser.ConfigParser(allow_no_value=True, delimiters=("\n",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(self.inventory)
        rows = [shlex.split(row) for row in parser["fleet"]]
        return {row[0]: dict(word.split("=", 1) for word in row[1:])["suite"] for row in rows}

    def host(self, name: str) -> LabHost:
        return LabHost(self, name)


@dataclass(frozen=True)
class LabHost:
    """One host, reached as root through SSH and sudo."""

    lab: Lab
    name: str

    @property
    def _ssh(self) -> list[str]:
        """ssh with one shared connection, which gives up when the host is silent for ten seconds."""
        run = self.lab.inventory.parent
        options = [f"ControlPath={run}/cm-%C", "ControlMaster=auto", "ControlPersist=30", "BatchMode=yes"]
        options += ["ServerAliveInterval=5", "ServerAliveCountMax=2", "ConnectTimeout=5"]
        return ["ssh", "-F", str(run / "ssh_config"), *(word for option in options for word in ("-o", option))]

    def disconnect(self) -> None:
        """End the shared connection, where there is one."""
        argv = [*self._ssh, "-O", "exit", self.name]
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)

    def run(self, command: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a shell command as root; a failed one fails the test with all that it said."""
        argv = [*self._ssh, self.name, "sudo -n sh -c " + shlex.quote(command)]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=timeout, check=False
        )
        text = f"{self.name}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}"
        assert not check or done.returncode == 0, text
        return done

    def send(self, file: Path, path: str) -> None:
        """Put a copy of a local file there, with its mode."""
        command = f"cat > {shlex.quote(path)} && chmod {file.stat().st_mode & 0o777:o} {shlex.quote(path)}"
        with file.open("rb") as content:
            argv = [*self._ssh, self.name, "sudo -n sh -c " + shlex.quote(command)]
            subprocess.run(argv, stdin=content, capture_output=True, timeout=120, check=True)

    def kill(self) -> None:
        """End the host at once, with its disk."""
        self.disconnect()
        self.lab.command("kill", self.name)

    def revive(self) -> None:
        """Boot the host as new after kill(); its workloads must be prepared again (PREPARE with a limit)."""
        self.lab.command("revive", self.name)

    def listing(self) -> list[str]:
        """All files that profiling could touch, with mode and checksum; see `lab listing`."""
        return self.lab.command("listing", self.name).stdout.splitlines()

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit as systemd shows them (one that is shown twice: its last value)."""
        lines = self.run(f"systemctl show {shlex.quote(unit)} -p {','.join(properties)}").stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def main_pid(self, unit: str) -> int:
        """The unit's main process, 0 where it has none."""
        return int(self.show(unit, "MainPID")["MainPID"])

    def mapped(self, unit: str) -> set[str]:
        """Names of the files that are mapped into the unit's main process."""
        lines = self.run(f"cat /proc/{self.main_pid(unit)}/maps").stdout.splitlines()
        return {line.split(None, 5)[5] for line in lines if len(line.split(None, 5)) == 6}

    def rss(self, unit: str) -> int:
        """Resident bytes of the unit's main process."""
        status = self.run(f"cat /proc/{self.main_pid(unit)}/status").stdout
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))) * 1024

    def frontend_health(self) -> dict[str, int | str]:
        """What the frontend's health endpoint says: status, served, leaked_inflaters."""
        ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8080/health', timeout=5).read().decode())"
        answer: dict[str, int | str] = json.loads(self.run(f'python3 -c "{ask}"').stdout)
        return answer
