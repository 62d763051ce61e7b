# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What a session answers about units and their agents.

This module is private to the collection.
"""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils import (
    agent,
    agent_commands,
    frames,
    procfs,
    running_units,
    spool,
    systemd,
)

ERRORS = (
    agent.AgentError,
    agent_commands.ControlError,
    procfs.ProcfsError,
    spool.SpoolError,
    systemd.SystemdError,
    OSError,
)


def _units(_request: dict[str, Any], _write: frames.Write) -> dict[str, Any]:
    return {"units": running_units.look()}


def _sample(request: dict[str, Any], _write: frames.Write) -> dict[str, Any]:
    return running_units.sample(request["unit"])


def _control(request: dict[str, Any], _write: frames.Write) -> dict[str, Any]:
    parameters = {"pid": None, "perf_map": True, "timeout": 60, **request["parameters"]}
    unit = systemd.service_name(request["unit"])
    return {"unit": unit, **agent_commands.control(parameters, unit, False)}


ANSWERS: dict[str, Callable[[dict[str, Any], frames.Write], dict[str, Any]]] = {
    "units": _units,
    "sample": _sample,
    "control": _control,
}
