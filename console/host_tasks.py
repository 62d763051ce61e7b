# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Fabric tasks that work on all their hosts at once: which hosts these are, and how to reach them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fabric import main as fabric_main
from fabric import task
from invoke.context import Context
from invoke.exceptions import Exit

from ..plugins.module_utils.formats.errors import OffheapError
from ..plugins.plugin_utils.base import libraries
from ..plugins.plugin_utils.base.options import user_path
from ..plugins.plugin_utils.fetch.host_session import Session, code
from . import each_host, fab_program, inventory, screen, target
from .connect import Connector

_FLEET_HELP = {
    "inventory": "Ansible inventory; may be given several times (also as fab -i INVENTORY TASK)",
    fab_program.LIMIT: fab_program.LIMIT_HELP,
    "json": "print JSON",
    "accept_new": "accept the keys of hosts never seen before and add them to known_hosts; a changed key is still"
    " refused",
    "at_once": "hosts at once (32)",
    "timeout": "seconds to wait for a connection (10)",
}


# As shells have it: 128 and the signal's number.
_INTERRUPTED = 130

fab_program.adapt()


class Hosts:
    """The hosts of a command and how to reach them."""

    def __init__(self, targets: list[target.Target], show: screen.Screen, options: dict[str, Any]) -> None:
        self.targets = targets
        self.show = show
        self._options = options
        self.at_once = int(options["at_once"])

    def ask(
        self,
        what: str,
        work: Callable[[target.Target, Session, screen.Steps], each_host.Result],
        tell: Callable[[list[tuple[str, each_host.Result]]], None] = lambda _results: None,
        failed: Callable[[str, str], None] = lambda _host, _error: None,
    ) -> int:
        """Do the work on all hosts. Returns the number of failures, which are reported, and ``failed`` gets each at
        once.

        ``tell`` gets the results with their hosts, by name: all at the end, but those that are there as soon as the
        others keep us waiting.
        """
        outcomes: list[each_host.Outcome[each_host.Result]] = []
        told = 0

        def tell_new() -> None:
            nonlocal told
            new = sorted(outcomes[told:], key=lambda outcome: outcome.target.name)
            told = len(outcomes)
            if results := [(outcome.target.name, outcome.result) for outcome in new if outcome.result is not None]:
                tell(results)

        options = self._options
        with (
            Connector(options["accept_new"], float(options["timeout"]), self.show.password) as connector,
            self.show.progress(what, [one.name for one in self.targets]) as steps,
        ):
            bound = functools.partial(_bound, work, steps)
            try:
                for some in each_host.run(self.targets, connector, bound, self.at_once):
                    outcomes += some
                    for outcome in some:
                        steps.done(outcome.target.name)
                        if outcome.error:
                            failed(outcome.target.name, outcome.error)
                    steps.refresh()
                    if not some and what and not self.show.as_json:
                        with self.show.paused():
                            tell_new()
            except Exception:  # a bug that one host has brought out hides no other
                with self.show.paused():
                    tell_new()
                raise
        tell_new()
        return self.show.failures(outcomes)


def _bound(
    work: Callable[..., each_host.Result], steps: screen.Steps, host: target.Target, session: Session
) -> each_host.Result:
    return work(host, session, steps)


def on_hosts(body: Callable[..., int]) -> Any:
    """A task for all hosts at once.

    Fabric runs a task once for each host of -H, one after the other, but its post tasks once. So the task only records
    its arguments, and its post task does the work. ``body`` returns how many hosts failed.
    """
    noted: list[dict[str, Any]] = []

    def work(context: Context) -> None:
        options = noted[0]
        noted.clear()
        show = screen.Screen(options.pop("json"))
        ways = {name: options.pop(name) for name in ("inventory", "limit", "accept_new", "at_once", "timeout")}
        try:
            if options.get("unit") in ("", []) and body.__name__ != "collect":
                raise target.TargetError("name the service with --unit, for example --unit frontend")
            fab_program.at_least(1, at_once=ways["at_once"], timeout=ways["timeout"])
            hosts = Hosts(_targets(ways["inventory"], ways["limit"]), show, ways)
            failed = body(hosts, **options)
        except OffheapError as error:
            raise Exit(f"{error}", 2) from error
        except KeyboardInterrupt:  # which is how watch ends
            if body.__name__ == "watch":
                return
            raise Exit("interrupted; what ran on the hosts was ended", _INTERRUPTED) from None
        if failed:
            raise Exit(code=1)

    @functools.wraps(body)
    def note(context: Context, **options: Any) -> None:
        noted.append(options)

    note.__signature__ = _with_fleet_options(body)  # type: ignore[attr-defined]
    # No positional arguments: --help would be taken for one.
    return task(
        post=[task(work)],
        positional=[],
        iterable=["inventory", "unit"],
        help={**_FLEET_HELP, **getattr(body, "help", {})},
    )(note)


def _with_fleet_options(body: Callable[..., int]) -> inspect.Signature:
    own = list(inspect.signature(body).parameters.values())
    options = {"inventory": None, "limit": "", "json": False, "accept_new": False, "at_once": 32, "timeout": 10}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [own[0], *(inspect.Parameter(name, kind, default=value) for name, value in options.items()), *own[1:]]
    )


def helped(**texts: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Sets what --help says about a task's own options."""

    def mark(body: Callable[..., int]) -> Callable[..., int]:
        body.help = texts  # type: ignore[attr-defined]
        return body

    return mark


def _targets(inventories: list[str], limit: str) -> list[target.Target]:
    """The hosts of -H, or of the inventories.

    Fabric takes the argument of its own -i for a private key; a file that is not a key is an inventory here.
    """
    core = fabric_main.program.core[0].args
    given = list(core.identity.value or [])
    keys = [path for path in given if _is_private_key(path)]
    inventories = [*inventories, *(path for path in given if path not in keys)]
    limit = limit or core[fab_program.LIMIT].value or ""
    if core.hosts.value:
        if inventories or limit:
            raise target.TargetError("name hosts with -H, or an inventory with -i and --limit, not both")
        return [target.from_word(word.strip(), keys) for word in core.hosts.value.split(",")]
    inventory.begin()
    code()
    libraries.load("zstandard", "encodings.idna", "rich.markup", "rich.table")
    return inventory.targets(inventories, limit)


def _is_private_key(path: str) -> bool:
    try:
        with user_path(path).open("rb") as stream:
            return b"PRIVATE KEY-----" in stream.readline(200)
    except OSError:
        return False
