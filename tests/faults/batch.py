# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Rows of the matrix tried at once on a booted host, each with a unit of its own.

What is seen of each unit is kept, and judged row by row later: see test_matrix.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.faults.fault import PROGRAM, Fault
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import PlaybookResult

RunPlaybook = Callable[..., PlaybookResult]
PLAYBOOKS = {
    "enable": Path(__file__).with_name("enable.yml"),
    "switch": "switch-profiling.yml",
    "collect": "collect-profiles.yml",
    "rollback": "rollback.yml",
    "purge": Path(__file__).with_name("purge.yml"),
}
#: files of ours that only a purge removes
SPOOLS = "/var/lib/offheap"
SMALL = f"mkdir -p {SPOOLS}; mount -t tmpfs -o size=24m,mode=0755 tmpfs {SPOOLS}"
#: processes of the unit that have a file of ours
UNDER_US = (
    'g=$(systemctl show {unit} -p ControlGroup --value); [ -z "$g" ] ||'
    ' for p in $(cat /sys/fs/cgroup"$g"/cgroup.procs /sys/fs/cgroup/systemd"$g"/cgroup.procs 2>/dev/null);'
    " do grep -l /opt/offheap/ /proc/$p/maps 2>/dev/null; done; true"
)
STRANGE_DUMP = "jeprof.99999.0.i0.heap"


@dataclass
class Seen:
    """What came of one row."""

    about: str = ""
    failures: str = ""
    took: float = 0.0
    took_after_the_blow: float = 0.0
    output: str = ""
    dumps: set[str] = field(default_factory=set)
    was_under_us: bool = False
    problem_at_the_end: str = ""
    left: list[str] = field(default_factory=list)
    processes: str = ""
    state: str = ""
    archived: set[str] = field(default_factory=set)
    damaged: list[str] = field(default_factory=list)


class Batch:
    """Runs one action on the units of its rows."""

    def __init__(
        self, faults: Sequence[Fault], host: LabHost, playbook: RunPlaybook, archive: Path, known: dict[str, Any]
    ) -> None:
        self.faults = faults
        self.do = faults[0].do
        self.host = host
        self.playbook = playbook
        self.archive = archive
        self.struck_at = 0.0
        # Enabling takes a dump of each, which is enough there: dozens of units would soon have more than one run takes.
        dump_seconds = 600 if self.do == "enable" else 2
        self.variables = {
            **known,
            "offheap_units": [
                {"name": fault.unit, "start_timeout": fault.start_timeout, "dump_seconds": dump_seconds}
                for fault in faults
            ],
            "offheap_archive": str(archive),
            "profiled_service_healthy_seconds": 2,
            "profiled_service_min_free_mib": 1,
            "profiled_service_agent_settings": {"start_delay": 0, "keep_files": 1000, "minimum_free": 1 << 20},
        }

    def shell(self, fault: Fault, command: str, check: bool = True) -> str:
        unit = fault.unit
        words = {
            "unit": shlex.quote(unit),
            "spool": shlex.quote(f"{SPOOLS}/{unit}"),
            "d": shlex.quote(f"/etc/systemd/system/{unit}.d"),
            "file": shlex.quote("/etc/systemd/system/" + re.sub("@[^.]*", "@", unit)),
            "dump": STRANGE_DUMP,
            "dumped": '"$(cd ' + shlex.quote(f"{SPOOLS}/{unit}") + '; ls *.heap | head -n 1)"',
        }
        for name, word in words.items():
            command = command.replace("{" + name + "}", word)
        return self.host.run(command, check=check).stdout

    def try_out(self) -> dict[Fault, Seen]:
        """Inject all, act once, and look at each unit before and after the host is purged."""
        seen = {fault: Seen() for fault in self.faults}
        try:
            self._begin(seen)
            self._act(seen)
            self._end(seen)
        finally:
            for fault in self.faults:
                self._discard(fault)
            if self.faults[0].small:
                self.host.run(f"umount {SPOOLS}", check=False)
        return seen

    def _begin(self, seen: dict[Fault, Seen]) -> None:
        if self.faults[0].small:
            self.host.run(SMALL)
        for fault in self.faults:
            files = [
                ("{file}", fault.text),
                *([(fault.program, PROGRAM.format(begin=fault.begin))] * bool(fault.begin)),
            ]
            for path, text in files:
                packed = base64.b64encode(text.encode()).decode()
                self.shell(fault, f"echo {packed} | base64 -d > {path}")
        self.host.run("systemctl daemon-reload")
        for fault in self.faults:
            self.shell(fault, "systemctl enable {unit} 2>/dev/null; systemctl restart {unit}", check=False)
        if self.do != "enable":
            self._run("enable").check()
            for fault, one in seen.items():
                if fault.dumps:
                    one.dumps = wait_for(lambda fault=fault: self._whole_dumps(fault), f"a dump of {fault.name}", 60)  # type: ignore[misc]
        for fault in self.faults:
            if fault.inject:
                self.shell(fault, fault.inject)

    def _act(self, seen: dict[Fault, Seen]) -> None:
        struck = next((fault for fault in self.faults if fault.is_struck), None)
        if struck and struck.unplug:
            self._run(self.do, check=True).check()  # opens our connection, and keeps it
            self.host.lab.command("unplug", self.host.name)
        started = time.monotonic()
        try:
            result = self._run(self.do, during=self._blow(struck) if struck and struck.at else None)
        finally:
            took = time.monotonic() - started
            if struck:
                self._recover(struck)
        for fault, one in seen.items():
            one.took, one.output = took, f"{result.stdout}\n(see {result.log})"
            one.took_after_the_blow = started + took - self.struck_at
            one.about = "\n".join(_lines_about(fault.unit, [task.result for task in result.tasks]))
            failures = result.failures(self.host.name)
            # What is refused is left out, and told at the end of the playbook that users run.
            refused = [line for line in one.about.splitlines() if "is unchanged: " in line]
            one.failures = failures if struck else "\n".join([_about(fault.unit, failures), *refused]).strip()
            one.was_under_us = self.shell(fault, UNDER_US) != ""
        if struck and struck.at:
            again = self._run(self.do)
            for one in seen.values():
                one.problem_at_the_end = again.failures()
        if self.do == "enable":
            for fault, one in seen.items():
                one.dumps = self._whole_dumps(fault)

    def _blow(self, fault: Fault) -> Callable[[subprocess.Popen[bytes], Path], None]:
        def blow(process: subprocess.Popen[bytes], log: Path) -> None:
            wait_for(lambda: fault.at in log.read_text(errors="replace"), f"'{fault.at}' in {log}", 120, 0.02)
            time.sleep(fault.delay)
            self.struck_at = time.monotonic()
            if process.poll() is not None:
                return
            if fault.signal:
                os.killpg(process.pid, signal.Signals[fault.signal])
            elif fault.strike == "unplug":
                self.host.lab.command("unplug", self.host.name)
            else:
                self.shell(fault, fault.strike, check=False)

        return blow

    def _recover(self, fault: Fault) -> None:
        """Wait until the host answers again."""
        self.host.disconnect()
        if fault.unplug or fault.strike == "unplug":
            self.host.lab.command("plug", self.host.name)
        wait_for(lambda: self.host.run("true", check=False).returncode == 0, f"{self.host.name} answers", 90)
        if fault.small:
            self.host.run(f"rm -f {SPOOLS}/fill")
        wait_for(lambda: self.host.show(fault.unit, "ActiveState")["ActiveState"] == "active", f"{fault.unit} runs", 90)

    def _end(self, seen: dict[Fault, Seen]) -> None:
        for fault in self.faults:
            if fault.repair:
                self.shell(fault, fault.repair)
        end = self._run("purge")
        archived, damaged = self._archived()
        for fault, one in seen.items():
            one.problem_at_the_end += _about(fault.unit, end.failures())
            one.left = self.shell(
                fault,
                "find /etc/systemd/system /run/systemd/system -path '*/'{unit}'.d/*90-offheap*';"
                " ls -d {d} /run/systemd/system/{unit}.d /run/offheap/{unit} /var/lib/offheap/{unit} 2>/dev/null; true",
            ).splitlines()
            one.processes = self.shell(fault, UNDER_US)
            one.state = self.host.show(fault.unit, "ActiveState")["ActiveState"]
            one.archived, one.damaged = archived, damaged

    def _archived(self) -> tuple[set[str], list[str]]:
        """Names of the dumps in the archive, and those that are not what was brought."""
        if not (self.archive / "archive.json").exists():
            return set(), []
        names, damaged = set(), []
        for capture in Archive.open(self.archive).captures():
            names.add(f"{capture.unit}/{capture.facts.dump.name}")
            with zstandard.ZstdDecompressor().stream_reader(capture.dump.read_bytes()) as stream:
                if hashlib.sha256(stream.read()).hexdigest() != capture.facts.dump.sha256:
                    damaged.append(str(capture.path))
        return names, damaged

    def _run(self, action: str, check: bool = False, during: Any = None) -> PlaybookResult:
        variables = {**self.variables}
        if action == "switch":
            variables |= {"state": "dump", "offheap_units": [fault.unit for fault in self.faults]}
        return self.playbook(
            PLAYBOOKS[action], limit=self.host.name, extra_vars=variables, check=check, timeout=600, during=during
        )

    def _whole_dumps(self, fault: Fault) -> set[str]:
        """The dumps in the spool that are whole."""
        script = f"cd {SPOOLS}/{shlex.quote(fault.unit)} 2>/dev/null && grep -l '\\[vdso\\]' *.heap; true"
        return {f"{fault.unit}/{name}" for name in self.host.run(script).stdout.split()}

    def _discard(self, fault: Fault) -> None:
        """Whatever has happened, the next rows begin on a clean host."""
        self.shell(
            fault,
            f"systemctl disable {{unit}}; systemctl stop {{unit}}; rm -f {{file}} {fault.program}; rm -rf {{d}}",
            False,
        )
        self.shell(
            fault,
            "systemctl daemon-reload; systemctl reset-failed {unit};"
            " rm -rf {spool} /var/lib/private/offheap/{unit} /run/offheap/{unit}",
            False,
        )


def _lines_about(unit: str, value: object) -> Iterator[str]:
    """Every line of text, anywhere in a result, that names the unit."""
    if isinstance(value, str):
        yield from (line for line in value.splitlines() if unit in line)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _lines_about(unit, part)
    elif isinstance(value, list):
        for part in value:
            yield from _lines_about(unit, part)


def _about(unit: str, text: str) -> str:
    return "\n".join(line for line in text.splitlines() if unit in line)
