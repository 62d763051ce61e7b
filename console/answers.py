# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What hosts answer, checked, so that one that makes no sense is an error of that host and of no other."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from ..plugins.module_utils.formats import values
from ..plugins.plugin_utils.base.byte_size import as_text
from ..plugins.plugin_utils.fetch.host_session import SessionError

_LONGEST = 4096


def units(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The units that run on a host, as running_units.look has them. Raises SessionError."""
    found = _mappings(answer, "units")
    for unit in found:
        sizes = all(values.is_size(unit.get(key)) for key in ("pid", "processes", "rss", "rss_with_agent"))
        texts = all(values.is_text(unit.get(key), _LONGEST) for key in ("unit", "runtime", "allocator"))
        if not sizes or not texts or not isinstance(unit.get("profiled"), bool):
            raise _nonsense()
        if not isinstance(unit.get("sampling"), (bool, type(None))):
            raise _nonsense()
    return found


def switched(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer to a command for agents, as commands.control has it. Raises SessionError."""
    for process in _mappings(answer, "processes"):
        if not values.is_size(process.get("pid")) or not isinstance(process.get("answer"), dict):
            raise _nonsense()
    if not isinstance(answer.get("changed"), bool):
        raise _nonsense()
    return answer


def trimmed(answer: dict[str, Any]) -> list[str]:
    """What each process gave back, if it was asked to trim. Raises SessionError."""
    lines = []
    for dump in _mappings(answer, "dumps"):
        if dump.get("rss_before") is None and dump.get("rss_after") is None:
            continue
        if not all(values.is_size(dump.get(key)) for key in ("pid", "rss_before", "rss_after")):
            raise _nonsense()
        before, after = as_text(dump["rss_before"]), as_text(dump["rss_after"])
        lines.append(f"process {dump['pid']}: {before} resident before, {after} after")
    return lines


def dumped(answer: dict[str, Any]) -> list[str]:
    """The names of the dumps that agents have written. Raises SessionError."""
    paths = [dump.get("path") for dump in _mappings(answer, "dumps")]
    if not all(values.is_text(path, _LONGEST) for path in paths):
        raise _nonsense()
    return [PurePosixPath(str(path)).name for path in paths]


def traced(answer: dict[str, Any]) -> dict[str, Any]:
    """What a live trace left, as tracing.windows has it. Raises SessionError."""
    numbers = all(values.is_size(answer.get(key)) for key in ("pid", "release"))
    dumps = answer.get("dumps")
    named = isinstance(dumps, list) and all(values.is_text(name, _LONGEST) for name in dumps)
    texts = all(values.is_text(answer.get(key), _LONGEST) for key in ("source", "ended"))
    if not numbers or not named or not texts:
        raise _nonsense()
    return answer


def _mappings(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise _nonsense()
    return found


def _nonsense() -> SessionError:
    return SessionError("the host's answer makes no sense")
