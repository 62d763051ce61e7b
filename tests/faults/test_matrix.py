# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Each fault of the matrix on a booted host, judged by four invariants:

1. no service and no host is left worse: the unit runs as before, and nothing of ours is left after the rollback
2. no capture is lost: what lay whole in the spool is in the archive at the end
3. the archive is never corrupt
4. the action ends in time, with the right status and one sentence that says what happened
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.faults.fault import Fault
from ansible_collections.offheap.profiler.tests.faults.matrix import MATRIX
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import REPOSITORY, PlaybookResult

RunPlaybook = Callable[..., PlaybookResult]
ENABLE = Path(__file__).with_name("enable.yml")
HOST = "app2"
PURGE = Path(__file__).with_name("purge.yml")
PLAYBOOKS = {"enable": ENABLE, "collect": "collect-profiles.yml", "rollback": "rollback.yml", "purge": PURGE}
#: files of ours that only a purge removes
SPOOLS = "/var/lib/offheap"
NOT_A_SENTENCE = ("Traceback", "MODULE FAILURE", "Errno", "No start of json")


@pytest.fixture(scope="session")
def installed(playbook: RunPlaybook, host: Callable[[str], LabHost]) -> dict[str, str]:
    """The library and the agent on the host."""
    built = {
        "offheap_cache": str(REPOSITORY / "build" / "faults-cache"),
        "jemalloc_version": "5.3.0",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
        "offheap_units": ["legacy"],
        "offheap_serial": "100%",
        "profiled_service_healthy_seconds": 1,
    }
    playbook("enable-profiling.yml", limit=f"app1,{HOST}", extra_vars=built).check()
    playbook("rollback.yml").check()
    found = host(HOST).run("ls /opt/offheap/jemalloc/*/lib/libjemalloc.so.2 /opt/offheap/agent/*/liboffheap.so")
    library, agent = sorted(found.stdout.split(), key=lambda path: "/agent/" in path)
    return {"profiled_service_library": library, "profiled_service_agent": agent}


class Trial:
    """One fault on the host."""

    def __init__(
        self, fault: Fault, host: LabHost, playbook: RunPlaybook, archive: Path, known: dict[str, Any]
    ) -> None:
        self.fault = fault
        self.host = host
        self.playbook = playbook
        self.archive = archive
        self.variables = {
            **known,
            "offheap_units": [fault.unit],
            "offheap_archive": str(archive),
            "profiled_service_healthy_seconds": 2,
            "profiled_service_start_timeout": fault.start_timeout,
            "profiled_service_agent_settings": {"start_delay": 0, "dump_seconds": 1, "keep_files": 1000},
        }

    def shell(self, command: str, check: bool = True) -> str:
        unit = self.fault.unit
        words = {
            "unit": shlex.quote(unit),
            "spool": shlex.quote(f"{SPOOLS}/{unit}"),
            "d": shlex.quote(f"/etc/systemd/system/{unit}.d"),
            "file": shlex.quote(f"/etc/systemd/system/{unit}"),
            "dump": "jeprof.99999.0.i0.heap",
        }
        for name, word in words.items():
            command = command.replace("{" + name + "}", word)
        return self.host.run(command, check=check).stdout

    def begin(self) -> None:
        text = shlex.quote(self.fault.service)
        self.shell(f"printf %s {text} > {{file}}; systemctl daemon-reload")
        self.shell("systemctl restart {unit}", check=False)

    def run(self, action: str, check: bool = False) -> PlaybookResult:
        return self.playbook(PLAYBOOKS[action], limit=HOST, extra_vars=self.variables, check=check, timeout=300)

    def whole_dumps(self) -> set[str]:
        """Names of the dumps in the spool that are whole."""
        script = f"cd {SPOOLS}/{shlex.quote(self.fault.unit)} 2>/dev/null && grep -l '\\[vdso\\]' *.heap; true"
        return set(self.host.run(script).stdout.split())

    def archived(self) -> set[str]:
        if not (self.archive / "archive.json").exists():
            return set()
        return {capture.facts.dump.name for capture in Archive.open(self.archive).captures()}

    def processes_under_us(self) -> str:
        return self.shell("grep -lE '/opt/offheap/' /proc/[0-9]*/maps 2>/dev/null; true")

    def left(self) -> list[str]:
        return self.shell(
            "find /etc/systemd/system /run/systemd/system -name '*90-offheap*';"
            " ls -d {d} /run/systemd/system/{unit}.d /run/offheap/{unit} /var/lib/offheap/{unit} 2>/dev/null; true"
        ).splitlines()

    def discard(self) -> None:
        """Whatever has happened, the next fault begins on a clean host."""
        self.shell("systemctl stop {unit}; rm -f {file}; rm -rf {d}; systemctl daemon-reload", False)
        self.shell(
            "systemctl reset-failed {unit}; rm -rf /var/lib/offheap /var/lib/private/offheap /run/offheap", False
        )


@pytest.mark.parametrize(
    "fault",
    MATRIX,
    ids=lambda fault: f"{fault.kind}: {fault.do}: {fault.name}",
)
def test_fault(
    fault: Fault,
    playbook: RunPlaybook,
    host: Callable[[str], LabHost],
    installed: dict[str, str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("kind", fault.kind)
    trial = Trial(fault, host(HOST), playbook, tmp_path / "archive", installed)
    trial.begin()
    try:
        judge(trial)
    finally:
        trial.discard()


def judge(trial: Trial) -> None:
    fault = trial.fault
    dumps: set[str] = set()
    if fault.do != "enable":
        trial.run("enable").check()
        dumps = wait_for(trial.whole_dumps, "a dump in the spool", 30)
    if fault.inject:
        trial.shell(fault.inject)
    if fault.unplug:
        trial.run(fault.do, check=True).check()  # opens our connection, and keeps it
        trial.host.lab.command("unplug", HOST)
    started = time.monotonic()
    try:
        result = trial.run(fault.do)
    finally:
        took = time.monotonic() - started
        if fault.unplug:
            trial.host.disconnect()
            trial.host.lab.command("plug", HOST)

    said = f"{result.stdout}\n(see {result.log})"
    assert (result.rc != 0) == fault.fails, f"I4: status {result.rc}: {said}"
    assert fault.says in result.stdout, f"I4: does not say '{fault.says}': {said}"
    assert [word for word in NOT_A_SENTENCE if word in result.stdout] == [], f"I4: no sentence: {said}"
    assert took < fault.within, f"I4: took {took:.0f} s"

    if fault.repair:
        trial.shell(fault.repair)
    end = trial.run("purge")
    assert end.rc == 0, f"I1: the last rollback fails: {end.failures()}\n{end.stdout}"
    assert trial.left() == [], "I1: something of ours is left"
    assert trial.processes_under_us() == "", "I1: processes still run under the profiler"
    state = trial.host.show(fault.unit, "ActiveState")["ActiveState"]
    assert state == "active", f"I1: the unit is {state}"
    assert dumps <= trial.archived(), "I2: captures are lost"
    for capture in Archive.open(trial.archive).captures() if dumps else []:
        with zstandard.ZstdDecompressor().stream_reader(capture.dump.read_bytes()) as stream:
            digest = hashlib.sha256(stream.read()).hexdigest()
        assert digest == capture.facts.dump.sha256, f"I3: {capture.path} is damaged"
