# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The operator's console: look at hosts now, without a playbook. ``fab -l`` lists the commands."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fabric import task
from invoke.context import Context

HERE = Path(__file__).resolve().parent


def _make_importable() -> None:
    """Give the collection the name that Ansible gives it, wherever it is."""
    places: dict[str, list[str]] = {"ansible_collections": [], "ansible_collections.offheap": []}
    for name, place in {**places, "ansible_collections.offheap.profiler": [str(HERE)]}.items():
        package = sys.modules.setdefault(name, types.ModuleType(name))
        package.__path__ = list(package.__dict__.get("__path__", place))


sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)  # Invoke forbids it, and compiling us takes long
gc.set_threshold(100_000)  # imports and captures leave no garbage, and hosts wait while it is looked for
_make_importable()
try:
    import rich  # noqa: F401  # pylint: disable=unused-import
except ImportError:
    sys.exit(f"the console needs rich, too: {sys.executable} -m pip install -r {HERE / 'console' / 'requirements.txt'}")

from ansible_collections.offheap.profiler.console import inventory

if {"-i", "--inventory"} & set(sys.argv) and not {"-H", "--hosts"} & set(sys.argv):
    inventory.begin()

from ansible_collections.offheap.profiler.console import answers, screen, target, traced

# fab finds its commands here
from ansible_collections.offheap.profiler.console.dump_tasks import (  # noqa: F401  # pylint: disable=unused-import
    ARCHIVE,
    ARCHIVE_HELP,
    ONLY_HELP,
    Units,
    captures,
    diff,
    failing,
    flame,
    import_files,
    peek,
    show_captures,
    top,
    wait,
)
from ansible_collections.offheap.profiler.console.fab_program import at_least, versions
from ansible_collections.offheap.profiler.console.host_tasks import Hosts, helped, on_hosts
from ansible_collections.offheap.profiler.console.pod_tasks import pod, pod_config  # noqa: F401  # pylint: disable=unused-import
from ansible_collections.offheap.profiler.console.report_tasks import (  # noqa: F401  # pylint: disable=unused-import
    report,
    serve,
)
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive import far_archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import byte_size
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.byte_size import as_text
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.durations import duration
from ansible_collections.offheap.profiler.plugins.plugin_utils.base.printable import printable
from ansible_collections.offheap.profiler.plugins.plugin_utils.driver.told_options import told_in_short
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import Collected, Wanted
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.collect import collect as collect_from
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import Session
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.stream import SessionTransport
from ansible_collections.offheap.profiler.plugins.plugin_utils.model.raw import Told

gc.freeze()  # nor does the end look for garbage in what is imported

_UNITS_HELP = "the service; may be given several times"
# As large as trace_live's recordings.
_RECORDING = 32 << 20


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
    found: list[tuple[str, dict[str, Any]]] = []
    columns = ("HOST", "UNIT", "MEMORY", "PROCS", "RUNTIME", "ALLOCATOR", "PROFILED")
    table = screen.Rows(hosts.show, columns, (2, 3))

    def tell(results: list[tuple[str, list[dict[str, Any]]]]) -> None:
        new = [(host, unit) for host, units in results for unit in units if wanted(unit)]
        found.extend(new)
        if not hosts.show.as_json:
            table.add([_row(host, unit) for host, unit in new])

    failed = hosts.ask("looking", lambda _host, session, _steps: answers.units(session.ask("units")), tell)
    if hosts.show.as_json:
        hosts.show.json([{"host": host, **unit} for host, unit in found])
    elif not found and not failed:
        hosts.show.say("no unit is profiled on these hosts: the playbook enable_profiling starts that")
    return failed


def _row(host: str, unit: dict[str, Any]) -> tuple[str, ...]:
    size, processes = as_text(unit["rss"]), str(unit["processes"])
    return host, printable(unit["unit"]), size, processes, unit["runtime"], unit["allocator"], _profiled(unit)


def _profiled(unit: dict[str, Any]) -> str:
    """``sampling 98 %``: so much of its memory is in processes with an agent."""
    if not unit["profiled"]:
        return "-"
    words = {True: "sampling", False: "armed, off,", None: "no agent"}[unit["sampling"]]
    share = "" if unit["sampling"] is None else f" {round(100 * unit['rss_with_agent'] / max(unit['rss'], 1))} %"
    return f"{words}{share}"


@on_hosts
@helped(unit="the service", interval="seconds between looks (2)", seconds="stop after this long (never)")
def watch(hosts: Hosts, unit: Units = None, interval: int = 2, seconds: int = 0) -> int:
    """
    Live: resident and live memory, growth per hour, as curves. Ctrl-C ends it.

        fab -H app1 watch --unit frontend
    """
    from ansible_collections.offheap.profiler.console import watch as watching

    at_least(1, interval=interval)
    at_least(0, seconds=seconds)
    if len(unit or ()) > 1:
        raise target.TargetError("watch follows one service: give --unit once")
    if len(hosts.targets) > hosts.at_once:
        raise target.TargetError(f"watch follows all its hosts at once: give --at-once {len(hosts.targets)}")
    name = (unit or [""])[0]
    series = {host.name: watching.Series(host.name) for host in hosts.targets}
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.daemon = True
    if seconds > 0:
        timer.start()

    def work(host: target.Target, session: Session, _steps: screen.Steps) -> None:
        watching.follow(series[host.name], session, name, interval, stop)

    try:
        with watching.shown(hosts.show, name, list(series.values()), interval):
            return hosts.ask("", work, failed=lambda host, error: series[host].lost(error))
    finally:
        stop.set()
        timer.cancel()


@on_hosts
@helped(unit=_UNITS_HELP, archive=ARCHIVE_HELP, rows="functions (15)", who_holds="and who holds it", trim="trim first")
def dump(
    hosts: Hosts,
    unit: Units = None,
    archive: str = ARCHIVE,
    rows: int = 15,
    who_holds: bool = False,
    trim: bool = False,
) -> int:
    """
    Dump now, collect the dump into the archive, and show what holds the memory.

        fab -H app1 dump --unit frontend
    """
    at_least(1, rows=rows)
    if who_holds and trim:
        raise target.TargetError("give --who-holds or --trim")
    units, store = unit or [], _archive(archive)
    command = "holders" if who_holds else "trim" if trim else "dump"

    def work(host: target.Target, session: Session, steps: screen.Steps) -> Any:
        done = [session.ask("control", 120.0, unit=name, parameters={"command": command}) for name in units]
        for line in [line for each in done for line in answers.trimmed(each)]:
            hosts.show.say(f"{host.name}: {line}")
        names = {name for each in done for name in answers.dumped(each)}
        return [facts for facts in _collected(host, session, steps, store, units).captures if facts.dump.name in names]

    taken = []
    unreadable: list[int] = []

    def tell(results: list[tuple[str, Any]]) -> None:
        new = [capture for _host, own in results for capture in own]
        taken.extend(new)
        if not hosts.show.as_json:
            unreadable.append(show_captures(store, new, rows, hosts.show))

    failed = hosts.ask("dumping", work, tell) + sum(unreadable)
    if hosts.show.as_json:
        hosts.show.json([{"host": one.host, "unit": one.unit, "capture": str(store.place(one))} for one in taken])
    return failed


@on_hosts
@helped(unit=ONLY_HELP, archive=ARCHIVE_HELP, source="what offered profiles do not say themselves: live::512KiB")
def collect(hosts: Hosts, unit: Units = None, archive: str = ARCHIVE, source: str = "") -> int:
    """
    Collect all new captures of all hosts into the archive, in parallel.

        fab -i inventory collect                     as: fab collect -i inventory
    """
    units, told = unit or [], told_in_short(source)
    store = _archive(archive)
    brought: list[tuple[str, Collected]] = []
    table = screen.Rows(hosts.show, ("HOST", "UNIT", "CAPTURES", "NETWORK"), (2, 3))

    def tell(results: list[tuple[str, Collected]]) -> None:
        brought.extend(results)
        for host, one in results:
            for warning in one.warnings:
                hosts.show.say(f"{host}: {printable(warning)}", "yellow")
        if not hosts.show.as_json:
            table.add(
                [
                    (host, printable(name), str(count), as_text(one.transferred) if first else "")
                    for host, one in results
                    for first, (name, count) in _first(
                        Counter(facts.unit for facts in one.captures).items() or [("nothing new", 0)]
                    )
                ]
            )

    failed = hosts.ask(
        "collecting", lambda host, session, steps: _collected(host, session, steps, store, units, told), tell
    )
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


@on_hosts
@helped(
    unit="the service",
    source="what traces: jvm, attach, memleak or perf (what the unit and the host allow)",
    window="seconds between two dumps (30)",
    windows="how many dumps (6); a verdict needs three over a minute",
    max_cost="percent of CPU time that tracing may add (memleak: 5; a JVM and attach: 2.5)",
    interval="bytes between two allocations that are recorded in a JVM or by the agent (1M)",
    library="async-profiler's library or the agent on the host (the newest that is installed)",
    archive=ARCHIVE_HELP,
    rows="paths to show of each host (5)",
)
def trace(
    hosts: Hosts,
    unit: str = "",
    source: str = "auto",
    window: int = 30,
    windows: int = 6,
    max_cost: str = "",
    interval: str = "1M",
    library: str = "",
    archive: str = ARCHIVE,
    rows: int = 5,
) -> int:
    """
    Trace what a running process allocates and does not free, without a restart, into the archive.

        fab -H app1 trace --unit frontend
    """
    store = _archive(archive)
    wanted = {"unit": unit, "library": library, "interval": byte_size.parse(interval), "largest": _RECORDING}
    wanted |= {"seconds": int(window), "count": int(windows), "source": source, "max_cost": traced.percent(max_cost)}

    def work(host: target.Target, session: Session, steps: screen.Steps) -> traced.Traced:
        so_far = traced.Windows(wanted["seconds"], wanted["count"])
        steps.working(host.name, so_far.text)
        done = answers.traced(session.ask("trace", so_far.most, so_far.begin, wanted=wanted))
        steps.working(host.name, lambda: "collecting")
        brought = _collected(host, session, steps, store, [unit])
        most_rows = 0 if hosts.show.as_json else int(rows)
        return done, brought.warnings, traced.rows(store, host.name, done, brought, most_rows)

    traces: list[dict[str, Any]] = []

    def tell(results: list[tuple[str, traced.Traced]]) -> None:
        for host, (one, warnings, _found) in results:
            traces.append({"host": host, **one})
            for warning in traced.warnings(one) + warnings:
                hosts.show.say(f"{host}: {printable(warning)}", "yellow")
        for heading, table in traced.tables(found for _host, (_one, _warnings, found) in results):
            hosts.show.table(heading, table, traced.NUMBERS)

    failed = hosts.ask(f"tracing for about {duration(wanted['seconds'] * wanted['count'])}", work, tell)
    if hosts.show.as_json:
        hosts.show.json(traces)
    return failed


def _archive(path: str) -> Archive:
    """The archive, created if there is none. Raises ArchiveError."""
    return far_archive.created(path)


def _collected(
    host: target.Target,
    session: Session,
    steps: screen.Steps,
    store: Archive,
    units: list[str],
    told: Told | None = None,
) -> Collected:
    """Collect what is new on a host. Raises CollectError."""
    wanted = Wanted(host.name)
    transport = SessionTransport(session, units, wanted.max_dump, wanted.max_captures, came=steps.came, told=told)
    return collect_from(transport, store, wanted)


def _first(items: Any) -> Iterator[tuple[bool, Any]]:
    for number, item in enumerate(items):
        yield number == 0, item


@on_hosts
@helped(unit=_UNITS_HELP)
def on(hosts: Hosts, unit: Units = None) -> int:
    """
    Switch sampling on in the running service, without a restart.

        fab -H app1 on --unit frontend
    """
    return _switch(hosts, unit or [], "activate")


@on_hosts
@helped(unit=_UNITS_HELP)
def off(hosts: Hosts, unit: Units = None) -> int:
    """
    Switch sampling off in the running service, without a restart.

        fab -H app1 off --unit frontend
    """
    return _switch(hosts, unit or [], "deactivate")


def _switch(hosts: Hosts, units: list[str], command: str) -> int:
    def work(_host: target.Target, session: Session, _steps: screen.Steps) -> list[tuple[str, dict[str, Any]]]:
        asked = {"parameters": {"command": command}}
        return [(name, answers.switched(session.ask("control", unit=name, **asked))) for name in units]

    switched: list[dict[str, Any]] = []
    table = screen.Rows(hosts.show, ("HOST", "UNIT", "PID", "NOW", ""), (2,))

    def tell(results: list[tuple[str, list[tuple[str, dict[str, Any]]]]]) -> None:
        done = [(host, *one) for host, each in results for one in each]
        switched.extend({"host": host, **result} for host, _name, result in done)
        if not hosts.show.as_json:
            table.add(
                [
                    (
                        host,
                        name,
                        str(process["pid"]),
                        "sampling" if process["answer"].get("wanted") else "off",
                        "changed" if result["changed"] else "as it was",
                    )
                    for host, name, result in done
                    for process in result["processes"]
                ]
            )

    failed = hosts.ask("switching", work, tell)
    if hosts.show.as_json:
        hosts.show.json(switched)
    return failed


@task
def version(_context: Context) -> None:
    """
    The versions of the collection, Ansible, Fabric and Python, for whoever you ask for help.

        fab version
    """
    print("\n".join(versions(HERE)))
