# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The operator's console: look at hosts now, without a playbook. ``fab -l`` lists the commands."""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fabric import task
from invoke.context import Context
from invoke.exceptions import Exit

HERE = Path(__file__).resolve().parent


def _make_importable() -> None:
    """Give the collection the name that Ansible gives it, wherever it is."""
    places: dict[str, list[str]] = {"ansible_collections": [], "ansible_collections.offheap": []}
    for name, place in {**places, "ansible_collections.offheap.profiler": [str(HERE)]}.items():
        package = sys.modules.setdefault(name, types.ModuleType(name))
        package.__path__ = list(package.__dict__.get("__path__", place))


_make_importable()

from ansible_collections.offheap.profiler.console import inventory

if {"-i", "--inventory"} & set(sys.argv) and not {"-H", "--hosts"} & set(sys.argv):
    inventory.begin()

from ansible_collections.offheap.profiler.console import answers, screen, target

# fab finds its commands here
from ansible_collections.offheap.profiler.console.dump_tasks import (  # noqa: F401  # pylint: disable=unused-import
    ARCHIVE,
    captures,
    diff,
    failing,
    flame,
    import_files,
    peek,
    top,
    top_text,
)
from ansible_collections.offheap.profiler.console.host_tasks import Hosts, helped, on_hosts
from ansible_collections.offheap.profiler.console.serve import report_server
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.byte_size import as_text
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.printable import printable
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import Collected, Wanted
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import collect as collect_from
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import Session
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.stream import SessionTransport


@on_hosts
def units(hosts: Hosts) -> int:
    """
    What runs on the hosts, how much memory it holds, and which of it is profiled.

        fab -H app1,app2 units
    """
    return _units(hosts, lambda _unit: True)


@on_hosts
def status(hosts: Hosts) -> int:
    """
    The profiled units of a fleet: memory, and whether they are sampled now.

        fab -i inventory --limit web status
    """
    return _units(hosts, lambda unit: bool(unit["profiled"]))


def _units(hosts: Hosts, wanted: Callable[[dict[str, Any]], bool]) -> int:
    outcomes, failed = hosts.ask("looking", lambda _host, session, _steps: answers.units(session.ask("units")))
    found = [(outcome.target.name, unit) for outcome in outcomes for unit in outcome.result or [] if wanted(unit)]
    if hosts.show.as_json:
        hosts.show.json([{"host": host, **unit} for host, unit in found])
        return failed
    rows = [
        (
            host,
            printable(unit["unit"]),
            as_text(unit["rss"]),
            str(unit["processes"]),
            unit["runtime"],
            unit["allocator"],
            {True: "sampling", False: "armed, off", None: "no agent"}[unit["sampling"]] if unit["profiled"] else "-",
        )
        for host, unit in found
    ]
    if rows:
        hosts.show.table(("HOST", "UNIT", "MEMORY", "PROCS", "RUNTIME", "ALLOCATOR", "PROFILED"), rows, (2, 3))
    elif not failed:
        hosts.show.say("no unit is profiled on these hosts: run enable-profiling.yml")
    return failed


@on_hosts
@helped(unit="the service", interval="seconds between looks (2)", seconds="stop after this long (never)")
def watch(hosts: Hosts, unit: str = "", interval: int = 2, seconds: int = 0) -> int:
    """
    Live: resident and live memory, growth per hour, as curves. Ctrl-C ends it.

        fab -H app1 watch --unit frontend
    """
    from ansible_collections.offheap.profiler.console import watch as watching

    series = {host.name: watching.Series(host.name) for host in hosts.targets}
    stop = threading.Event()
    timer = threading.Timer(float(seconds), stop.set)
    timer.daemon = True
    if float(seconds) > 0:
        timer.start()

    def work(host: target.Target, session: Session, _steps: screen.Steps) -> None:
        watching.follow(series[host.name], session, unit, float(interval), stop)

    try:
        with _watched(hosts.show, watching.View(unit, list(series.values())), list(series.values()), float(interval)):
            return hosts.ask("", work)[1]
    finally:
        stop.set()
        timer.cancel()


@contextmanager
def _watched(show: screen.Screen, view: Any, series: list[Any], interval: float) -> Iterator[None]:
    """Meanwhile shows the view on a terminal, elsewhere lines or JSON, one for each host and look."""
    if show.out.is_terminal and not show.as_json:
        from rich.live import Live

        with Live(view, console=show.out, refresh_per_second=4, screen=False):
            yield
        return
    over = threading.Event()

    def lines() -> None:
        shown: dict[str, float] = {}
        while not over.wait(interval / 4):
            for one in series:
                document = one.document()
                if document["time"] is None or shown.get(one.host) == document["time"]:
                    continue
                shown[one.host] = document["time"]
                if show.as_json:
                    print(json.dumps(document), flush=True)
                    continue
                growth = "" if document["growth_per_hour"] is None else f" {as_text(document['growth_per_hour'])}/h"
                moment = time.strftime("%H:%M:%S", time.localtime(document["time"]))
                print(f"{moment} {one.host} rss {as_text(document['rss'])}{growth}", flush=True)

    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@on_hosts
@helped(unit="the service", archive=f"directory of the archive ({ARCHIVE})", rows="functions to show (15)")
def dump(hosts: Hosts, unit: str = "", archive: str = ARCHIVE, rows: int = 15) -> int:
    """
    Dump now, collect the dump into the archive, and show what holds the memory.

        fab -H app1 dump --unit frontend
    """
    store = _archive(archive)

    def work(host: target.Target, session: Session, steps: screen.Steps) -> Any:
        done = session.ask("control", 120.0, unit=unit, parameters={"command": "dump"})
        names = {Path(str(one["path"])).name for one in done["dumps"]}
        brought = _collected(host, session, steps, store, [unit])
        return [facts for facts in brought.captures if facts.dump.name in names]

    outcomes, failed = hosts.ask("dumping", work)
    taken = [capture for outcome in outcomes for capture in outcome.result or []]
    if hosts.show.as_json:
        hosts.show.json([{"host": one.host, "unit": one.unit, "capture": str(store.place(one))} for one in taken])
        return failed
    for capture in taken:
        sys.stdout.write(top_text(store.place(capture), int(rows), False, ("", ""), hosts.show))
    return failed


@on_hosts
@helped(unit="only this service; may be given several times", archive=f"directory of the archive ({ARCHIVE})")
def collect(hosts: Hosts, unit: str = "", archive: str = ARCHIVE) -> int:
    """
    Collect all new captures of all hosts into the archive, in parallel.

        fab -i inventory collect                     as: fab collect -i inventory
    """
    store = _archive(archive)
    units = [unit] if unit else []
    outcomes, failed = hosts.ask(
        "collecting", lambda host, session, steps: _collected(host, session, steps, store, units)
    )
    brought = [(outcome.target.name, outcome.result) for outcome in outcomes if outcome.result is not None]
    for host, one in brought:
        for warning in one.warnings:
            hosts.show.say(f"{host}: {printable(warning)}", "yellow")
    if hosts.show.as_json:
        hosts.show.json(
            [
                {
                    "host": host,
                    "captures": [str(store.place(facts)) for facts in one.captures],
                    "images": one.images,
                    "transferred": one.transferred,
                }
                for host, one in brought
            ]
        )
        return failed
    rows = [
        (host, printable(name), str(count), as_text(one.transferred) if first else "")
        for host, one in brought
        for first, (name, count) in _first(
            Counter(facts.unit for facts in one.captures).items() or [("nothing new", 0)]
        )
    ]
    if rows:
        hosts.show.table(("HOST", "UNIT", "CAPTURES", "NETWORK"), rows, (2, 3))
    return failed


def _archive(path: str) -> Archive:
    """The archive, created if there is none. Raises ArchiveError."""
    return Archive.create(Path.cwd() / Path(path).expanduser())


def _collected(
    host: target.Target, session: Session, steps: screen.Steps, store: Archive, units: list[str]
) -> Collected:
    """Collect what is new on a host. Raises CollectError."""
    wanted = Wanted(host.name)
    transport = SessionTransport(session, units, wanted.max_dump, wanted.max_captures, came=steps.came)
    return collect_from(transport, store, wanted)


def _first(items: Any) -> Iterator[tuple[bool, Any]]:
    for number, item in enumerate(items):
        yield number == 0, item


@on_hosts
@helped(unit="the service")
def on(hosts: Hosts, unit: str = "") -> int:
    """
    Switch sampling on in the running service, without a restart.

        fab -H app1 on --unit frontend
    """
    return _switch(hosts, unit, "activate")


@on_hosts
@helped(unit="the service")
def off(hosts: Hosts, unit: str = "") -> int:
    """
    Switch sampling off in the running service, without a restart.

        fab -H app1 off --unit frontend
    """
    return _switch(hosts, unit, "deactivate")


def _switch(hosts: Hosts, unit: str, command: str) -> int:
    outcomes, failed = hosts.ask(
        "switching",
        lambda _host, session, _steps: answers.switched(
            session.ask("control", unit=unit, parameters={"command": command})
        ),
    )
    done = [(outcome.target.name, outcome.result) for outcome in outcomes if outcome.result is not None]
    if hosts.show.as_json:
        hosts.show.json([{"host": host, **result} for host, result in done])
        return failed
    rows = [
        (
            host,
            unit,
            str(process["pid"]),
            "sampling" if process["answer"].get("wanted") else "off",
            "changed" if result["changed"] else "as it was",
        )
        for host, result in done
        for process in result["processes"]
    ]
    if rows:
        hosts.show.table(("HOST", "UNIT", "PID", "NOW", ""), rows, (2,))
    return failed


@task(
    help={
        "archive": f"directory of the archive ({ARCHIVE})",
        "dest": "directory for the reports (offheap/report)",
        "unit": "only this service",
        "json": "print JSON",
    }
)
def report(
    _context: Context, archive: str = ARCHIVE, dest: str = "offheap/report", unit: str = "", json: bool = False
) -> None:
    """
    Judge from the archive what leaks, and write the report as HTML.

        fab report
    """
    from ansible_collections.offheap.profiler.console import offline

    show = screen.Screen(json)
    with failing():
        made = offline.reported(Path(archive), Path(dest), unit, lambda text: show.say(text, "yellow"))
    if json:
        show.json({"files": made.fleet, "summary": [line for _answer, line in made.lines()]})
        return
    for answer, line in made.lines():
        show.verdict(answer, line)


@task(help={"directory": "what to serve (offheap/report)", "port": "port on 127.0.0.1 (8800)"})
def serve(_context: Context, directory: str = "offheap/report", port: int = 8800) -> None:
    """
    Serve the reports on 127.0.0.1, to whoever has the address that is printed.

        fab serve
    """
    if not Path(directory).is_dir():
        raise Exit(f"there is no directory {directory}: report-leaks.yml and fab report create it", 2)
    try:
        server, address = report_server(directory, port)
    except OSError as error:
        raise Exit(f"cannot listen on 127.0.0.1:{port}: {error.strerror}", 2) from error
    with server:
        print(f"{address}   Ctrl-C ends", flush=True)
        server.serve_forever()
