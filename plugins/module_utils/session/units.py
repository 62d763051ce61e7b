# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a session answers about units and their agents.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client, commands
from ansible_collections.offheap.profiler.plugins.module_utils.formats import wire
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.session import running_units
from ansible_collections.offheap.profiler.plugins.module_utils.spool import directory

ERRORS = (
    client.AgentError,
    commands.ControlError,
    procfs.ProcfsError,
    directory.SpoolError,
    systemd.SystemdError,
    OSError,
)


def _units(_request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    return {"units": running_units.look()}


def _sample(request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    return running_units.sample(request["unit"])


def _control(request: dict[str, Any], _write: wire.Write) -> dict[str, Any]:
    parameters = {"pid": None, "perf_map": True, "timeout": 60, **request["parameters"]}
    unit = systemd.service_name(request["unit"])
    return {"unit": unit, **commands.control(parameters, unit, False)}


ANSWERS: dict[str, Callable[[dict[str, Any], wire.Write], dict[str, Any]]] = {
    "units": _units,
    "sample": _sample,
    "control": _control,
}
