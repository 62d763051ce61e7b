# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A transient timer that runs a part of this collection on the host for a unit, again and again.

What it runs is a zip file of the modules that this process has loaded, below /run. It and the timer are gone after a
reboot, when they are stopped, or when they have run as often as they should.

This module is private to the collection.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import zipfile
from typing import Any, Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, systemd, trusted_path
from ansible_collections.offheap.profiler.plugins.module_utils.unit import spool_directory
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes

_PACKAGE = "ansible_collections.offheap.profiler.plugins.module_utils"
_PROGRAM, _TASK, _LEFT = "program.pyz", "task.json", "left"
_MAIN = """\
import sys
from {module} import {function}
{function}(sys.argv[1])
"""


class TimerError(OffheapError):
    """A timer cannot be set up. The message says why, and what to do."""


def name_of(unit: str) -> str:
    """The timer's name without ``.timer``: that of the unit, escaped as systemd-escape(1) does."""
    plain = unit[: -len(".service")]
    return "offheap-take-" + re.sub(r"[^A-Za-z0-9:_.]", lambda match: f"\\x{ord(match[0]):02x}", plain)


def start(changes: Changes, unit: str, function: str, task: Mapping[str, Any], every: int, count: int) -> None:
    """Have ``function`` ("module.function" of ours, loaded) called with the unit's name every so many seconds, and
    ``count`` times. It finds ``task`` by ``next_task``.

    Leaves a timer for the same task alone, and replaces any other. Raises TimerError, SystemdError.
    """
    wanted = json.dumps({"task": task, "every": every, "count": count}, sort_keys=True)
    where = f"{places.TAKING}/{unit}"
    if _read(f"{where}/{_TASK}") == wanted and _state(unit, "timer") == "active":
        return
    fault = trusted_path.fault(sys.executable)
    if fault:
        raise TimerError(
            f"{sys.executable} cannot be run as root by a timer: {fault}. Set ansible_python_interpreter to one of"
            " the system itself, such as /usr/bin/python3"
        )
    stop(changes, unit)
    changes.do(lambda: _start(unit, where, function, wanted, every, count))


def _start(unit: str, where: str, function: str, wanted: str, every: int, count: int) -> None:
    program = _packed(*function.rsplit(".", 1))
    for path, mode in ((places.SOCKETS, 0o755), (places.TAKING, 0o700), (where, 0o700)):
        places.make(path, mode)
    for name, content in ((_PROGRAM, program), (_TASK, wanted.encode()), (_LEFT, str(count).encode())):
        _write(f"{where}/{name}", content)
    _forget_failure(unit)
    command = [sys.executable, "-I", f"{where}/{_PROGRAM}", unit]
    systemd.start_timer(name_of(unit), f"Heap profiles of {unit} (offheap.profiler)", command, every)


def next_task(unit: str) -> Mapping[str, Any]:
    """What the unit's timer is to do now; the last time, ends the timer too. Raises TimerError, SystemdError."""
    where = f"{places.TAKING}/{unit}"
    try:
        task: Mapping[str, Any] = json.loads(_read(f"{where}/{_TASK}") or "")["task"]
        left = int(_read(f"{where}/{_LEFT}") or "") - 1
    except ValueError as exc:
        raise TimerError(f"{where} is not whole: take the profiles anew, or roll back") from exc
    if left > 0:
        _write(f"{where}/{_LEFT}", str(left).encode())
    else:
        _stop(unit, "timer")  # the service is this process
    return task


def stop(changes: Changes, unit: str) -> None:
    """Stop the unit's timer and remove what it runs, if there is one. Raises SystemdError."""
    where = f"{places.TAKING}/{unit}"
    if os.path.isdir(where):
        changes.note(where, "directory\n", "")
        changes.do(lambda: _stop(unit, "timer", "service"))


def _stop(unit: str, *kinds: str) -> None:
    for kind in kinds:
        if _state(unit, kind) in ("active", "activating"):
            try:
                systemd.systemctl("stop", "--", f"{name_of(unit)}.{kind}")
            except systemd.SystemdError:
                if _state(unit, kind) in ("active", "activating"):  # else it has ended by itself
                    raise
    if "service" in kinds:
        _forget_failure(unit)
    spool_directory.remove(f"{places.TAKING}/{unit}")


def _forget_failure(unit: str) -> None:
    """A run that was killed leaves a failed service, which would keep the next timer from starting."""
    if _state(unit, "service") == "failed":
        systemd.systemctl("reset-failed", "--", f"{name_of(unit)}.service")


def _state(unit: str, kind: str) -> str:
    return systemd.show(f"{name_of(unit)}.{kind}", ["ActiveState"]).get("ActiveState", [""])[0]


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(path: str, content: bytes) -> None:
    with open(f"{path}.new", "wb") as file:
        file.write(content)
    os.rename(f"{path}.new", path)


def _packed(module: str, function: str) -> bytes:
    """A zip file of our modules that are loaded, whose program calls the function with its first argument."""
    parts = _PACKAGE.split(".")
    sources = {".".join(parts[: depth + 1]): "" for depth in range(len(parts))}
    packages = set(sources)
    for name, loaded in list(sys.modules.items()):
        if name.startswith(f"{_PACKAGE}.") and loaded.__spec__ is not None and loaded.__spec__.loader is not None:
            if loaded.__spec__.submodule_search_locations is not None:
                packages.add(name)
                sources[name] = ""
            else:
                sources[name] = loaded.__spec__.loader.get_source(name) or ""  # type: ignore[attr-defined]
                packages.add(name.rpartition(".")[0])
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _MAIN.format(module=module, function=function))
        for name in sorted(packages | set(sources)):
            path = name.replace(".", "/")
            archive.writestr(f"{path}/__init__.py" if name in packages else f"{path}.py", sources.get(name, ""))
    return content.getvalue()
