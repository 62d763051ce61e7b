# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Try the profiler on one packaged service after another, and write docs/services.md from what was seen.

    run.py [--attached] [--pairs N] [--again] [--table] [SERVICE ...]

A lot of services is tried on a fresh host of each suite of Debian at once, on N pairs of hosts. What was seen is kept,
in tests/services/seen/, and not tried again unless --again is given; --table only writes the table.
With --attached, services run as they were packaged, and are attached to.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / ".cache" / "collections"))

from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, build
from ansible_collections.offheap.profiler.tests.services import attached, table, trial
from ansible_collections.offheap.profiler.tests.services.catalog import LOTS
from ansible_collections.offheap.profiler.tests.services.packaged import SUITES, Service
from ansible_collections.offheap.profiler.tests.services.trial import Outcome

BUILD = ROOT / "build" / "services"
SEEN = ROOT / "tests" / "services" / "seen"
PAGE = ROOT / "docs" / "services.md"


Seen = TypeVar("Seen", bound=Outcome)


@dataclass(frozen=True)
class Way(Generic[Seen]):
    """A way to try services, the folder beside each suite's records that has its own, and what a record is."""

    tried: Callable[[Sequence[Service], dict[str, LabHost], Controller, Path], list[Seen]]
    folder: str
    outcome: type[Seen]

    def place(self, suite: str, name: str) -> Path:
        return SEEN / suite / self.folder / f"{name}.json"

    def kept(self) -> list[Seen]:
        """What was seen, in the catalog's order."""
        paths = [self.place(suite, service.of(suite).name) for lot in LOTS for service in lot for suite in SUITES]
        return [self.outcome(**json.loads(path.read_text())) for path in paths if path.exists()]


PRELOADED = Way(trial.tried, "", Outcome)
ATTACHED = Way(attached.tried, "attached", attached.Attachment)


def work(way: Way[Any], lab: Lab, first: int, todo: queue.SimpleQueue[list[Service]], tarball: Path) -> None:
    """Try what is to do, on the hosts from number ``first``."""
    hosts = {suite: lab.host(f"app{first + number}") for number, suite in enumerate(SUITES)}
    with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
        controller = Controller(Path(directory), lab.inventory, BUILD / "logs" / str(first))
        controller.install(tarball)
        while True:
            try:
                services = todo.get_nowait()
            except queue.Empty:
                return
            try:
                outcomes = way.tried(services, hosts, controller, BUILD / f"archive-{first}")
            except Exception:  # of the lab or of this program: the services are tried again in the next run
                traceback.print_exc()
                continue
            for outcome in outcomes:
                path = way.place(outcome.suite, outcome.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(asdict(outcome), indent=1) + "\n")
                print(outcome, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attached", action="store_true")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("services", nargs="*", metavar="SERVICE")
    options = parser.parse_args()
    way: Way[Any] = ATTACHED if options.attached else PRELOADED
    todo: queue.SimpleQueue[list[Service]] = queue.SimpleQueue()
    for lot in LOTS:
        wanted = [one for one in lot if one.name in (options.services or [one.name])]
        wanted = [
            one
            for one in wanted
            if options.again or not all(way.place(suite, one.of(suite).name).exists() for suite in SUITES)
        ]
        if options.attached:  # how it is replaced matters to what is preloaded
            wanted = [one for one in wanted if not one.upgrade]
        if wanted:
            todo.put(wanted)
    if not options.table and not todo.empty():
        run(way, todo, options.pairs)
    PAGE.write_text(table.page(PRELOADED.kept(), ATTACHED.kept()))
    print(f"{PAGE.relative_to(ROOT)} is written")
    return 0


def run(way: Way[Any], todo: queue.SimpleQueue[list[Service]], pairs: int) -> None:
    os.environ["OFFHEAP_LAB_FILTER"] = "0"
    lab = Lab(os.environ.get("OFFHEAP_LAB_NAME", "services"))
    lab.down()
    lab.command("up", "--hosts", str(pairs * len(SUITES)), "--suites", ",".join(SUITES))
    try:
        with tempfile.TemporaryDirectory() as directory:
            tarball = build(Path(directory))
            workers = [
                threading.Thread(target=work, args=(way, lab, 1 + pair * len(SUITES), todo, tarball))
                for pair in range(pairs)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
    finally:
        lab.down()


if __name__ == "__main__":
    sys.exit(main())
