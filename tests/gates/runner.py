# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runs gates, some at once, tries what failed once more, and tells what came of it.

A gate is a command: exit status 0 is passed, 77 skipped (its last line says why), anything else failed. A gate of tests
counts as its tests.

What failed is tried once more, alone, when all else has ended: two busy cores have bad moments. What passes then counts
as passed and stands by name in the summary; its first error stays in the gate's log. Each of them is a bug to find, and
more than a few are a failure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

SKIPPED = 77
SHOWN_LINES = 300
SHOWN_FAILURES = 30
LONGEST = 3000  # seconds
BAD_MOMENTS = 5  # what may pass at the second try only


@dataclass(frozen=True)
class Gate:
    """A command; ``tests``, the paths or node ids that pytest gets, come after it."""

    name: str
    group: str
    command: tuple[str, ...]
    tests: tuple[str, ...] = ()
    after: str = ""  # a gate that must have ended before
    lab: str = ""  # the name of the lab that it boots


@dataclass
class Outcome:
    """What came of a gate."""

    gate: Gate
    status: int
    seconds: float
    cpu: float  # seconds, but for those of hosts
    passed: set[str] = field(default_factory=set)  # the names of tests, or the gate's own
    failed: dict[str, str] = field(default_factory=dict)  # the same, each with its error
    skipped: set[str] = field(default_factory=set)
    second_try: list[str] = field(default_factory=list)  # what failed first and passed then

    @property
    def word(self) -> str:
        return {0: "ok", SKIPPED: "skipped"}.get(self.status, "FAILED")

    @property
    def counts(self) -> Counter[str]:
        return Counter(passed=len(self.passed), failed=len(self.failed), skipped=len(self.skipped))

    def read_report(self, report: Path) -> None:
        """Add the tests of a pytest run from its JUnit report; none if the run broke before writing one."""
        try:
            cases = list(ET.parse(report).getroot().iter("testcase"))
        except (OSError, ET.ParseError):
            return
        for case in cases:
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            problems = [*case.iter("failure"), *case.iter("error")]
            if problems:
                self.failed[name] = problems[0].get("message", "")
            elif case.find("skipped") is not None:
                self.skipped.add(name)
            else:
                self.passed.add(name)
        self.passed -= self.failed.keys()  # one that broke while it was taken down stands there twice

    def add_second_try(self, again: Outcome) -> None:
        """Count what has passed now as passed."""
        self.seconds += again.seconds
        self.cpu += again.cpu
        if self.gate.name in self.failed:  # the whole gate broke, and was run again as a whole
            self.second_try = [] if again.failed else [self.gate.name]
            self.passed, self.failed, self.skipped = again.passed, again.failed, again.skipped
        else:
            self.second_try = sorted(self.failed.keys() & again.passed)
            still = {name: error for name, error in self.failed.items() if name not in again.passed}
            self.failed = {**still, **again.failed}
            self.passed = (self.passed | again.passed) - self.failed.keys()
        self.status = 1 if self.failed else again.status


@dataclass
class Runner:
    """Runs the gates of the checkout ``root``. Temporary files go to ``directory``, logs and reports to ``logs``."""

    root: Path
    logs: Path
    directory: Path
    at_once: int
    environment: dict[str, str]
    started: dict[str, float] = field(default_factory=dict)  # when each gate began that runs now
    last: dict[str, float] = field(default_factory=dict)  # seconds that gates took the last time

    def __post_init__(self) -> None:
        if self._figures.exists():
            self.last = json.loads(self._figures.read_text())

    @property
    def _figures(self) -> Path:
        return self.logs / "seconds.json"

    def main(self, gates: Sequence[Gate]) -> int:
        """Run the gates, print a summary, and return 0, or 1 if something failed."""
        began = time.monotonic()
        outcomes = self.run(gates, self.at_once, began)
        again = self.worth_a_second_try(outcomes)
        for outcome, second in zip(
            again, self.run([self.once_more(one) for one in again], 1, began, ".again"), strict=True
        ):
            outcome.add_second_try(second)
        self.sum_up(outcomes, time.monotonic() - began)
        return int(any(outcome.word == "FAILED" for outcome in outcomes))

    def run(self, gates: Sequence[Gate], at_once: int, began: float, suffix: str = "") -> list[Outcome]:
        """Run them, the first ones first, and those that wait for another after it."""
        waiting, names = list(gates), {gate.name for gate in gates}
        running: dict[Future[Outcome], Gate] = {}
        outcomes: dict[str, Outcome] = {}
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            while waiting or running:
                ready = [gate for gate in waiting if gate.after not in names - outcomes.keys()]
                for gate in ready[: at_once - len(running)]:
                    waiting.remove(gate)
                    self.started[gate.name] = time.monotonic()
                    print(f"== {gate.name}: {' '.join([*gate.command, *gate.tests])}", flush=True)
                    running[pool.submit(self.outcome_of, gate, suffix)] = gate
                ended, _ = wait(running, timeout=60, return_when=FIRST_COMPLETED)
                for future in ended:
                    gate = running.pop(future)
                    del self.started[gate.name]
                    outcomes[gate.name] = future.result()
                    self.report(outcomes[gate.name], suffix)
                if not ended:
                    self.tell_progress(list(running.values()), waiting, at_once, time.monotonic() - began, suffix)
        return [outcomes[gate.name] for gate in gates]

    def outcome_of(self, gate: Gate, suffix: str) -> Outcome:
        log, report = self.logs / f"{gate.name}{suffix}.log", self.logs / f"{gate.name}{suffix}.xml"
        report.unlink(missing_ok=True)
        command = [*gate.command, *gate.tests]
        if gate.tests:
            command += [f"--junit-xml={report}", "-o", f"cache_dir={self._cache(gate)}"]
            command += [f"--basetemp={self.directory / gate.name}{suffix}"]
        environment = {**self.environment, "TMPDIR": str(self.directory)}
        if gate.lab:
            environment["OFFHEAP_LAB_NAME"] = gate.lab
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            status, cpu = end_of(process, f"{gate.name}: stopped: nothing here takes longer than {LONGEST} s")
        outcome = Outcome(gate, status, time.monotonic() - began, cpu)
        if gate.tests:
            outcome.read_report(report)
        if status == SKIPPED:
            outcome.skipped.add(gate.name)
        elif status != 0 and not outcome.failed:
            outcome.failed[gate.name] = last_line(log)
        elif not outcome.counts.total():
            outcome.passed.add(gate.name)
        return outcome

    def _cache(self, gate: Gate) -> Path:
        """Where pytest remembers which tests of the gate failed."""
        return self.directory / "cache" / gate.name

    def worth_a_second_try(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """What failed and may have met a bad moment."""
        broken = [outcome for outcome in outcomes if outcome.word == "FAILED"]
        # A fixture that failed is one bad moment, however many tests wanted it.
        causes = {(outcome.gate.name, error) for outcome in broken for error in outcome.failed.values()}
        if len(causes) > BAD_MOMENTS:
            print(f"== no second try: {len(causes)} failures are more than {BAD_MOMENTS}, so no bad moment")
            return []
        return [outcome for outcome in broken if outcome.seconds < LONGEST]

    def once_more(self, outcome: Outcome) -> Gate:
        """The gate's failed tests alone, or the whole gate where no test is known to have failed."""
        gate = replace(outcome.gate, after="")
        if not gate.tests or gate.name in outcome.failed:
            return gate
        failed = json.loads((self._cache(gate) / "v" / "cache" / "lastfailed").read_text())
        return replace(gate, tests=tuple(sorted({self.whole_file_if_in_order(node) for node in failed})))

    def whole_file_if_in_order(self, node: str) -> str:
        """The node id of a test, or the file of one that needs the tests before it."""
        file = node.partition("::")[0]
        return file if "pytest.mark.in_order" in (self.root / file).read_text() else node

    def tell_progress(
        self, running: Sequence[Gate], waiting: Sequence[Gate], at_once: int, seconds: float, suffix: str
    ) -> None:
        """Say every minute what runs, what waits, and how long it will take if all take as long as the last time."""
        now = time.monotonic()
        left = [max(self.last.get(gate.name, 0) - (now - self.started[gate.name]), 0) for gate in running]
        left += [self.last.get(gate.name, 0) for gate in waiting]
        line = f"-- {seconds / 60:.0f} min"
        if not suffix and all(gate.name in self.last for gate in [*running, *waiting]):
            line += f", about {max(*left, sum(left) / at_once) / 60:.0f} more"
        if waiting:
            line += f"; to come: {', '.join(gate.name for gate in waiting)}"
        print(line)
        for gate in running:
            took = f"{now - self.started[gate.name]:.0f} s"
            if gate.name in self.last and not suffix:
                took += f" of {self.last[gate.name]:.0f}"
            print(f"--   {gate.name}: {took}: {last_line(self.logs / f'{gate.name}{suffix}.log')}", flush=True)

    def report(self, outcome: Outcome, suffix: str) -> None:
        """Say that a gate has ended, with the end of its log if it failed."""
        log = self.logs / f"{outcome.gate.name}{suffix}.log"
        line = f"== {outcome.gate.name}: {outcome.seconds:.1f} s {outcome.word}"
        if outcome.status == SKIPPED:
            line += f" ({last_line(log)})"
        elif outcome.status != 0:
            lines = log.read_text(errors="replace").rpartition("\n== what ")[2].splitlines()
            if len(lines) > SHOWN_LINES:
                lines = [f"... (full log: {log.relative_to(self.root)})", *lines[-SHOWN_LINES:]]
            line = "\n".join([*(f"   {text}" for text in lines), line])
        print(line, flush=True)

    def sum_up(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Print a line for each gate, what passed at the second try, and the total; remember how long each took."""
        total: Counter[str] = Counter()
        print(f"\n== summary ({seconds:.0f} s)")
        for outcome in outcomes:
            total.update(outcome.counts)
            words = (f"{number} {word}" for word, number in outcome.counts.items() if number)
            before = self.last.get(outcome.gate.name)
            took = f"{outcome.seconds:7.1f} s{outcome.cpu:7.1f} CPU"
            took += f" (last time{before:7.1f} s)" if before is not None else ""
            print(f"   {outcome.word:8}{outcome.gate.name:18}{took}   {', '.join(words)}")
        logs = self.logs.relative_to(self.root)
        for outcome in outcomes:
            for name in outcome.second_try:
                print(f"   passed at the second try: {name} (first error: {logs}/{outcome.gate.name}.log)")
        if failed := [outcome.gate.name for outcome in outcomes if outcome.word == "FAILED"]:
            print(f"== failed: {' '.join(failed)}; logs are in {logs}/")
            told = [
                f"{name}: {' '.join(error.split())[:200]}" for one in outcomes for name, error in one.failed.items()
            ]
            print("\n".join(f"   FAILED {line}" for line in told[:SHOWN_FAILURES]))  # the end is all that some read
        print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped", flush=True)
        took_now = {outcome.gate.name: outcome.seconds for outcome in outcomes}
        self._figures.write_text(json.dumps({**self.last, **took_now}))


def end_of(process: subprocess.Popen[bytes], complaint: str) -> tuple[int, float]:
    """The exit status, and the CPU seconds of all that it waited for. What hangs is stopped, and has failed."""
    hangs = threading.Event()

    def stop() -> None:
        print(f"-- {complaint}", flush=True)
        hangs.set()
        process.send_signal(signal.SIGINT)  # like Ctrl-C, so that hosts are taken down
        killer.start()

    stopper, killer = threading.Timer(LONGEST, stop), threading.Timer(60, process.kill)
    stopper.start()
    _pid, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    stopper.cancel()
    killer.cancel()
    return process.returncode or int(hangs.is_set()), used.ru_utime + used.ru_stime


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return lines[-1].strip()[:160] if lines else "no output"
