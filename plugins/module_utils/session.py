# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The host's end of the console's session: a question in, an answer out, until the other end goes away.

It runs from memory, as the interpreter's standard input and output are connected to the controller, and puts nothing
on the host that the modules would not.

This module is private to the collection.
"""

from __future__ import annotations

import functools
from typing import IO, Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils import (
    agent,
    agent_commands,
    fetch_steps,
    frames,
    procfs,
    running_units,
    spool,
    systemd,
)

#: requests name what they have been told here, so they stay below it
_MAX_REQUEST = 64 << 20
_ERRORS = (
    agent.AgentError,
    agent_commands.ControlError,
    procfs.ProcfsError,
    spool.SpoolError,
    systemd.SystemdError,
    OSError,
)


def _control(request: dict[str, Any], _write: frames.Write) -> dict[str, Any]:
    parameters = {"pid": None, "perf_map": True, "timeout": 60, **request["parameters"]}
    unit = systemd.service_name(request["unit"])
    return {"unit": unit, **agent_commands.control(parameters, unit, False)}


def _stream(request: dict[str, Any], write: frames.Write) -> dict[str, Any]:
    return fetch_steps.stream(request["request"], functools.partial(frames.write_data, write))


_ANSWERS: dict[str, Callable[[dict[str, Any], frames.Write], dict[str, Any]]] = {
    "units": lambda _request, _write: {"units": running_units.look()},
    "sample": lambda request, _write: running_units.sample(request["unit"]),
    "control": _control,
    # Nothing is packed on a disk here, so no file system bounds a batch.
    "find": lambda request, _write: {**fetch_steps.find(request["options"]), "free": 1 << 60},
    "stream": _stream,
    "mark": lambda request, _write: fetch_steps.mark(request["dumps"], request["delete"]),
}


def serve(source: IO[bytes], target: IO[bytes]) -> None:
    """Answer requests C({"ask": name, ...}) until the source ends."""

    def write(block: bytes) -> None:
        target.write(block)
        target.flush()

    while True:
        frame = frames.read(source.read, _MAX_REQUEST)
        if frame is None or frame.message is None:
            return
        try:
            answer: dict[str, Any] = {"answer": _ANSWERS[frame.message["ask"]](frame.message, write)}
        except _ERRORS as exc:
            answer = {"error": str(exc)}
        frames.write_message(write, answer)
