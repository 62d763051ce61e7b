# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One service on hosts that have just booted, from its installation to the comparison of what rollback has left."""

from __future__ import annotations

import fnmatch
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive, read_dump
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.capture import Capture
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.sources import Places, open_reader
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers import detect
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult
from ansible_collections.offheap.profiler.tests.services.packaged import Service

# Hosts have few packages.
CLIENTS = ("curl", "netcat-openbsd", "bind9-dnsutils")
CHILDREN = {True: {"children": True}, False: {}}
DUMPS, DUMP_SECONDS = 2, 4
# What a service keeps below /var/lib is its own to change; what is ours or the system's there is not.
OURS_TO_KEEP = ("/var/lib/offheap", "/var/lib/private/offheap", "/var/lib/systemd", "/var/lib/dpkg")
# D-Bus starts the last two, and they end by themselves when nobody asks any more.
PASSING = ("user@*", "user-runtime-dir@*", "session-*", "client-*", "systemd-hostnamed*", "NetworkManager-dispatcher*")


T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Outcome:
    """What was seen, as it is kept. ``untried`` says why the service did not even run without the profiler."""

    suite: str
    name: str
    unit: str
    version: str = ""
    seen: str = ""  # the day
    untried: str = ""
    enabled: str = ""  # yes, refused (before a restart), put back, or failed (the playbook did not come so far)
    reason: str = ""
    samples: int = 0
    named: float = 0.0
    processes: int = 0
    reload: str = ""
    restart: str = ""
    rolled_back: bool = False
    problem: str = ""
    changed: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)
    needed: list[str] = field(default_factory=list)


class State(NamedTuple):
    """What must be the same before and after."""

    files: set[str]
    active: set[str]
    ours: set[str]  # processes with something of ours mapped


class TrialError(Exception):
    """The service cannot be tried."""


@dataclass
class Trial:
    """One service on one host."""

    host: LabHost
    service: Service
    outcome: Outcome
    unit: str = ""  # by its own name, with its suffix

    @property
    def client(self) -> str:
        return f"/root/client-{self.service.name}.sh"

    def prepare(self) -> None:
        """Configure, and see that the service works before anything of ours is there."""
        unit, client = shlex.quote(self.service.unit), shlex.quote(self.service.client)
        if self.service.setup:
            self.host.run(self.service.setup, check=False)
        self.host.run(
            f"printf %s {client} > {self.client}; systemctl unmask {unit}; systemctl restart {unit}", check=False
        )
        self.unit = self.host.show(self.service.unit, "Id")["Id"]
        try:
            self.drive()
        except TrialError as error:
            self.outcome.untried = str(error)
        package = self.service.packages.split()[0]
        self.outcome.version = self.host.run(f"dpkg-query -W -f '${{Version}}' {package}").stdout

    def drive(self) -> None:
        """Let the client have its way, after a start that may take its time."""
        command = f"for n in $(seq 20); do timeout 20 sh {self.client} && exit 0; sleep 2; done; exit 1"
        done = self.host.run(command, check=False, timeout=480)
        state = self.host.show(self.service.unit, "ActiveState")["ActiveState"]
        if done.returncode or state != "active":
            raise TrialError(f"{state}, and its client says: {(done.stdout + done.stderr).strip()[-200:]}")

    def judge_enabled(self, result: PlaybookResult) -> None:
        """What the playbook says of this unit, the last that it says."""
        answers = [task.result for task in result.of(self.host.name) if task.action.endswith("unit_enable")]
        told = [one for answer in answers for one in answer.get("units", []) if one["unit"] == self.unit]
        if not told:
            self.outcome.enabled, self.outcome.reason = "failed", result.failures(self.host.name)
            return
        self.outcome.reason = str(told[-1]["problem"])
        self.outcome.enabled = "yes"
        if self.outcome.reason:
            self.outcome.enabled = "put back" if told[-1]["restarted"] else "refused"

    def under_load(self) -> None:
        """Reload, replace and restart the service while its client works, and wait for dumps of what runs then."""
        load = f"client-{self.service.name}"
        loop = f"while :; do sh {self.client}; sleep 0.2; done"
        self.host.run(f"systemd-run -q --unit={load} --service-type=exec sh -c {shlex.quote(loop)}")
        if self.host.show(self.service.unit, "CanReload")["CanReload"] == "yes":
            self.outcome.reload = self._survives("reload")
        if self.service.upgrade:
            self.host.run(self.service.upgrade, check=False)
        else:
            self.outcome.restart = self._survives("restart")
        try:
            wanted = self.dumps() + DUMPS
            wait_for(lambda: self.dumps() >= wanted, "dumps", timeout=10 * DUMP_SECONDS, interval=1)
        except AssertionError:
            self.outcome.problem = "no dumps after it"
        self.host.run(f"systemctl stop {load}; systemctl reset-failed {load}", check=False)

    def dumps(self) -> int:
        """How many are in the spool."""
        have = f"ls /var/lib/offheap/{self.unit}/*.heap /var/lib/private/offheap/{self.unit}/*.heap 2> /dev/null"
        return len(self.host.run(have, check=False).stdout.splitlines())

    def _survives(self, act: str) -> str:
        if self.host.run(f"systemctl {act} {shlex.quote(self.service.unit)}", check=False).returncode:
            return "failed"
        try:
            self.drive()
        except TrialError as error:
            return str(error)
        return "yes"

    def judge_captures(self, archive: Archive) -> None:
        """Samples, and the share of frames with a name, of the dump that has the most of them."""
        captures = archive.captures(self.unit, self.host.name)
        self.outcome.processes = len({capture.process for capture in captures})
        if not captures:
            return
        counted = {capture.path: sampled(capture) for capture in captures}
        most = max(captures, key=lambda capture: counted[capture.path])
        self.outcome.samples = counted[most.path]
        with open_reader([most.path], Places()) as reader:
            samples = reader.read(most.path).samples
        frames = [frame for stack in samples.each_stack_of_frames() for frame in stack]
        self.outcome.named = sum(bool(frame.function) for frame in frames) / max(1, len(frames))

    def problems(self, result: PlaybookResult) -> list[str]:
        """What a playbook could not do for this unit."""
        return [line for line in result.failures(self.host.name).splitlines() if self.unit in line]

    def end(self) -> None:
        """End all its processes, and start it anew."""
        unit = shlex.quote(self.service.unit)
        self.host.run(f"systemctl stop {unit}; systemctl kill -s KILL {unit}; systemctl start {unit}", check=False)

    def judge_rollback(self, before: State, after: State, result: PlaybookResult) -> None:
        """Whether all is as it was. A file that differs, or a unit that is down, is told of each service of a host."""
        problems = self.problems(result)
        try:
            self.drive()
        except TrialError as error:
            problems.append(str(error))
        self.outcome.changed = sorted({line.rsplit(" ", 1)[1] for line in before.files ^ after.files})
        self.outcome.down = sorted((before.active - after.active) | after.ours)
        self.outcome.problem = "; ".join(filter(None, [self.outcome.problem, *problems]))
        self.outcome.rolled_back = not (problems or self.outcome.changed or self.outcome.down)


def sampled(capture: Capture) -> int:
    """Objects that the dump of a capture has, as sampled."""
    facts = capture.facts
    records = detect.parse_capture(read_dump(capture.dump, facts.dump.sha256), str(capture.dump), facts)
    return sum(records.counts.objects)


def state(host: LabHost, services: Sequence[Service]) -> State:
    """What is on a host, but for what these services themselves write."""
    own = [service.writes for service in services if service.writes]
    files = set()
    for line in host.listing():
        path = line.rsplit(" ", 1)[1]
        theirs = path.startswith("/var/lib/") and not path.startswith(OURS_TO_KEEP)
        if not theirs and not any(fnmatch.fnmatch(path, pattern) for pattern in own):
            files.add(line)
    units = host.run("systemctl list-units --plain --no-legend --state=active -t service,socket,path,timer,target")
    names = {line.split()[0] for line in units.stdout.splitlines()}
    mapped = host.run("grep -l /opt/offheap /proc/[0-9]*/maps 2> /dev/null", check=False).stdout.split()
    active = {name for name in names if not any(fnmatch.fnmatch(name, kind) for kind in PASSING)}
    return State(files, active, set(mapped))


def variables(sites: dict[LabHost, list[Trial]], directory: Path) -> dict[str, Any]:
    """What the playbooks are told: a sampling interval for small services, and no long waits."""
    units = {
        host.name: [
            {"name": one.service.unit, "agent_settings": {"start_delay": 0, **CHILDREN[one.service.children]}}
            for one in trials
        ]
        for host, trials in sites.items()
    }
    return {
        "offheap_units": f"{{{{ {units}[inventory_hostname] }}}}",
        "offheap_archive": str(directory / "archive"),
        "offheap_cache": str(directory.parent / "cache"),
        "offheap_serial": ["100%"],
        "jemalloc_method": "cross",
        "jemalloc_source": "{{ lab_sources }}/jemalloc-5.3.0.tar.bz2",
        "profiled_service_malloc_conf": {"lg_prof_sample": 12},
        "profiled_service_dump_seconds": DUMP_SECONDS,
        "profiled_service_healthy_seconds": 4,
        "profiled_service_start_timeout": 60,
        "rollback_purge": True,
    }


def tried(
    services: Sequence[Service], hosts: dict[str, LabHost], controller: Controller, directory: Path
) -> list[Outcome]:
    """Try services that get along, on one fresh host of each suite; ``directory`` is for what is collected."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    sites: dict[LabHost, list[Trial]] = {}
    for suite, host in hosts.items():
        theirs = [service.of(suite) for service in services]
        sites[host] = [Trial(host, one, Outcome(suite, one.name, f"{one.unit} {one.note}".strip())) for one in theirs]
    each(list(sites.items()), lambda site: install(*site))
    every = [trial for trials in sites.values() for trial in trials]
    for trial in every:
        trial.outcome.seen = time.strftime("%Y-%m-%d", time.gmtime())
    each([trial for trial in every if not trial.outcome.untried], Trial.prepare)
    sites = {host: [trial for trial in trials if not trial.outcome.untried] for host, trials in sites.items()}
    sites = {host: trials for host, trials in sites.items() if trials}
    if not sites:
        return [trial.outcome for trial in every]
    told = variables(sites, directory)
    only = ",".join(host.name for host in sites)
    before = dict(zip(sites, each(list(sites), lambda host: state(host, services)), strict=True))

    enabled = controller.playbook("enable_profiling.yml", limit=only, extra_vars=told)
    del told["offheap_units"]
    trials = [trial for trials in sites.values() for trial in trials]
    for trial in trials:
        trial.judge_enabled(enabled)
    profiled = [trial for trial in trials if trial.outcome.enabled == "yes"]
    if profiled:
        each(profiled, Trial.under_load)
        controller.playbook("collect_profiles.yml", limit=only, extra_vars=told)
        archive = Archive.open(directory / "archive")
        for trial in profiled:
            trial.judge_captures(archive)
            trial.outcome.needed += ["children"] if trial.service.children else []
    rolled_back = controller.playbook("rollback.yml", limit=only, extra_vars=told)
    if held_up := [trial for trial in trials if trial.problems(rolled_back)]:
        # As the messages say, so that the other services of the host can be judged.
        each(held_up, Trial.end)
        controller.playbook("rollback.yml", limit=only, extra_vars=told)
    after = dict(zip(sites, each(list(sites), lambda host: state(host, services)), strict=True))
    each(trials, lambda trial: trial.judge_rollback(before[trial.host], after[trial.host], rolled_back))
    shutil.rmtree(directory)
    return [trial.outcome for trial in every]


def install(host: LabHost, trials: list[Trial]) -> None:
    """Boot a host afresh, and install all packages at once."""
    host.kill()
    host.revive()
    packages = dict.fromkeys(package for trial in trials for package in trial.service.packages.split())
    done = host.lab.command("install", host.name, *packages, *CLIENTS, check=False)
    for trial in trials if done.returncode else []:
        trial.outcome.untried = f"its packages cannot be installed: {done.stderr.strip()[-200:]}"


def each(items: list[T], act: Callable[[T], R]) -> list[R]:
    """Do it with all at once."""
    with ThreadPoolExecutor(max(1, len(items))) as pool:
        return list(pool.map(act, items))
