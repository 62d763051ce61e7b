# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A session's answers about units and their agents, and live traces of units.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils.agent import commands
from ansible_collections.offheap.profiler.plugins.module_utils.formats import unit_name, wire
from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.session import running_units
from ansible_collections.offheap.profiler.plugins.module_utils.tracing import running_trace, windows


def _units(_request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    return {"units": running_units.look()}


def _sample(request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    return running_units.sample(_known(request["unit"]))


def _control(request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    parameters = {"pid": None, "perf_map": True, "timeout": 60, **request["parameters"]}
    unit = _known(request["unit"])
    return {"unit": unit, **commands.control(parameters, unit, False)}


def _trace(request: dict[str, Any], write: wire.Write) -> dict[str, Any]:
    """A block of data before the answer says that the first window begins."""
    wanted = running_trace.Wanted(**request["wanted"])
    _known(wanted.unit)
    return windows.trace(wanted, begun=lambda: wire.write_data(write, b"begun")).to_json()


def _known(unit: str) -> str:
    """The unit's whole name. Raises SystemdError if there is none, so that whoever mistypes it hears that first."""
    name = unit_name.service(unit)
    try:
        states = systemd.show(name, ["LoadState"]).get("LoadState")
    except systemd.SystemdError:
        return name  # an agent answers without systemd, too
    if states == ["not-found"]:
        import difflib  # only here: hosts answer sooner without it

        others = [other.partition(".")[0] for other in running_units.names()]
        close = difflib.get_close_matches(name.partition(".")[0], others, 1)
        perhaps = f" (did you mean {close[0]}?)" if close else ""
        raise systemd.SystemdError(f"there is no unit {name} on this host{perhaps}; `fab units` lists those that run")
    return name


ANSWERS: dict[str, Callable[[dict[str, Any], wire.Write], dict[str, Any]]] = {
    "units": _units,
    "sample": _sample,
    "control": _control,
    "trace": _trace,
}
