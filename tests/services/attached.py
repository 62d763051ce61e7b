# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""One service that runs as it was packaged, attached to while a client works with it: does either notice?"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.offheap.profiler.plugins.module_utils.formats.limits import LARGEST_LIVES
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.unpack import read
from ansible_collections.offheap.profiler.plugins.plugin_utils.readers.lives_book import parse
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, Task
from ansible_collections.offheap.profiler.tests.services.packaged import Service
from ansible_collections.offheap.profiler.tests.services.trial import (
    Outcome,
    Trial,
    TrialError,
    each,
    install,
)

WINDOW, WINDOWS = 8, 2
# Answers that the client gets before and after.
ANSWERS = 5
AT_ONCE = 3
# What systemd and services themselves write of a process that a signal has ended.
_DEATHS = (
    "killed, status|dumped, status|exited on signal|on signal 11|signal: 11|by signal|[Ss]egmentation|SIGSEGV|panic:"
)


@dataclass
class Attachment(Outcome):
    """What was seen: ``enabled`` is of attaching, ``held`` for how long a thread was (seconds)."""

    held: float = 0.0
    answers: int = 0  # that the client got, before, while and after
    missed: int = 0  # that it did not get
    answers_before: int = 0
    missed_before: int = 0


@dataclass
class Attached(Trial):
    """One service on one host."""

    outcome: Attachment
    pid: int = 0
    began: str = ""

    @property
    def answers(self) -> str:
        return f"/run/client-{self.service.name}.answers"

    @property
    def load(self) -> str:
        return f"client-{self.service.name}"

    def begin(self) -> None:
        """Let the client work on its own, and choose the process."""
        loop = f"while :; do sh {self.client} > /dev/null 2>&1 && echo yes || echo no; sleep 0.2; done > {self.answers}"
        self.host.run(f"systemd-run -q --unit={self.load} --service-type=exec sh -c {shlex.quote(loop)}")
        self.wait_for_answers()
        self.outcome.answers_before, self.outcome.missed_before = self.counted("yes"), self.counted("no")
        found = self.host.run(self.service.worker, check=False).stdout.split() if self.service.worker else []
        self.pid = int(found[0]) if found else 0
        self.began = self.host.run("date +@%s").stdout.strip()

    def counted(self, answer: str) -> int:
        return int(self.host.run(f"grep -c ^{answer} {self.answers}", check=False).stdout or 0)

    def wait_for_answers(self) -> None:
        """Some more of the client's."""
        wanted = self.counted("") + ANSWERS
        wait_for(lambda: self.counted("") >= wanted, "answers", timeout=120, interval=0.5)

    def processes(self) -> dict[str, str]:
        """What of the unit must not change."""
        return self.host.show(self.service.unit, "MainPID", "NRestarts", "ActiveState", "SubState")

    def judge_trace(self, task: Task | None, message: str) -> None:
        """What the module has said."""
        if task is None or task.status != "ok":
            told = task.message if task else message
            self.outcome.enabled, self.outcome.reason = "refused" if "perf can" in told else "failed", told[:600]
            return
        result = task.result
        self.pid = result["pid"]
        self.outcome.enabled, self.outcome.held = "yes", result["held"]
        self.outcome.problem = result["ended"]

    def judge_captures(self, archive: Archive) -> None:
        """As of a profile; the samples are all that were drawn, whether or not they live."""
        super().judge_captures(archive)
        books = [capture.lives for capture in archive.captures(self.unit, self.host.name)]
        drawn = [sum(parse(read(book, LARGEST_LIVES), str(book)).births) for book in books if book]
        self.outcome.samples = max(drawn, default=0)

    def judge_after(self, before: dict[str, str]) -> None:
        """Whether the service has noticed, or will."""
        noticed = []
        try:
            self.wait_for_answers()
        except AssertionError as error:
            noticed.append(str(error))
        self.outcome.answers, self.outcome.missed = self.counted("yes"), self.counted("no")
        if self.outcome.missed * self.outcome.answers_before > self.outcome.missed_before * self.outcome.answers:
            noticed.append(
                f"{self.outcome.missed} answers did not come and {self.outcome.answers} did;"
                f" {self.outcome.missed_before} and {self.outcome.answers_before} before"
            )
        after = self.processes()
        noticed += [f"{key} was {before[key]}, is {value}" for key, value in after.items() if before[key] != value]
        said = f"journalctl -q --since={self.began} -u {shlex.quote(self.service.unit)} | grep -E '{_DEATHS}'"
        noticed += self.host.run(said, check=False).stdout.splitlines()[:3]
        threads = f"cat /proc/{self.pid}/task/*/comm 2> /dev/null | grep -x offheap"
        if self.host.run(threads, check=False).stdout:
            noticed.append("the agent's thread is still there")
        try:
            self.drive()
        except TrialError as error:
            noticed.append(str(error))
        self.outcome.problem = "; ".join(filter(None, [self.outcome.problem, *noticed]))
        self.outcome.rolled_back = not noticed
        self.host.run(f"systemctl stop {self.load}; systemctl reset-failed {self.load}", check=False)


def tried(
    services: Sequence[Service], hosts: dict[str, LabHost], controller: Controller, directory: Path
) -> list[Attachment]:
    """Attach to services that get along, on one fresh host of each suite; ``directory`` is for what is collected."""
    shutil.rmtree(directory, ignore_errors=True)
    trials: dict[str, list[Attached]] = {}
    for service in services:
        for suite, host in hosts.items():
            one = service.of(suite)
            outcome = Attachment(suite, one.name, f"{one.unit} {one.note}".strip())
            outcome.seen = time.strftime("%Y-%m-%d", time.gmtime())
            trials.setdefault(service.name, []).append(Attached(host, one, outcome))
    every = [trial for several in trials.values() for trial in several]
    each(list(hosts.values()), lambda host: install(host, [trial for trial in every if trial.host is host]))
    each([trial for trial in every if not trial.outcome.untried], Attached.prepare)
    running = [[trial for trial in several if not trial.outcome.untried] for several in trials.values()]
    first, *rest = [several for several in running if several] or [[]]
    attach(first, controller, directory)  # it installs the agent
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda several: attach(several, controller, directory), rest))
    shutil.rmtree(directory, ignore_errors=True)
    return [trial.outcome for trial in every]


def attach(trials: list[Attached], controller: Controller, directory: Path) -> None:
    """One service, on each host at once."""
    if not trials:
        return
    each(trials, Attached.begin)
    before = each(trials, Attached.processes)
    archive = directory / trials[0].service.name
    units = {trial.host.name: trial.service.unit for trial in trials}
    pids = {trial.host.name: trial.pid or "" for trial in trials}
    told = {
        "offheap_trace_unit": f"{{{{ {units}[inventory_hostname] }}}}",
        "offheap_trace_pid": f"{{{{ {pids}[inventory_hostname] }}}}",
        "offheap_trace_source": "attach",
        "offheap_trace_interval": "4K",
        "offheap_trace_window": WINDOW,
        "offheap_trace_windows": WINDOWS,
        "offheap_archive": str(archive),
        "offheap_report": str(archive.with_suffix(".report")),
        "offheap_cache": str(directory.parent / "cache"),
        "offheap_report_units": [],
        "jemalloc_method": "cross",
    }
    result = controller.playbook("trace_live.yml", limit=f"{','.join(units)},localhost", extra_vars=told)
    for trial, state in zip(trials, before, strict=True):
        tasks = [task for task in result.of(trial.host.name) if task.action.endswith("trace_live")]
        trial.judge_trace(tasks[-1] if tasks else None, result.failures(trial.host.name))
        trial.judge_after(state)
        if trial.outcome.enabled == "yes":
            trial.judge_captures(Archive.open(archive))
