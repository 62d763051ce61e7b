# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Units for tests: as plain objects, and as answers of a systemctl that stands first on PATH."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import service
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

# What systemd says of a plain unit that is stopped.
_SINGLE = {
    "ActiveEnterTimestampMonotonic": "0",
    "ActiveState": "inactive",
    "CanStart": "yes",
    "CanStop": "yes",
    "ControlGroup": "",
    "DynamicUser": "no",
    "FragmentPath": "",
    "Group": "",
    "Id": "probe.service",
    "InvocationID": "",
    "KillMode": "control-group",
    "LimitFSIZESoft": "infinity",
    "LimitNOFILESoft": "1024",
    "LimitNPROCSoft": "infinity",
    "LoadState": "loaded",
    "MainPID": "0",
    "NRestarts": "0",
    "NeedDaemonReload": "no",
    "NetworkNamespacePath": "",
    "NoNewPrivileges": "no",
    "PrivateNetwork": "no",
    "ProtectSystem": "no",
    "Result": "success",
    "RootDirectory": "",
    "RootImage": "",
    "SubState": "dead",
    "SystemCallErrorNumber": "2147483646",
    "Type": "simple",
    "UMask": "0022",
    "User": "",
    "WorkingDirectory": "",
}
_LISTS = [*service._LISTS.split(), *service.DEPENDENTS, service.TRIGGERS, service._NAMES]

_SYSTEMCTL = """#!/bin/sh
here={here}
echo "$*" >> $here/calls
case "$*" in
    *" show-environment") cat $here/environment;;
    *" daemon-reload") exit "$(cat $here/reload-status)";;
    *" reset-failed "*|*" stop "*) ;;
    *" restart "*) . $here/restart;;
    *" show "*|*"show --property"*)
        set -- $here/states/*
        cat "$1"
        if [ $# -gt 1 ]; then rm "$1"; fi;;
    *) echo "fake systemctl: $*" >&2; exit 1;;
esac
"""


def unit(
    *commands: str | Path,
    arguments: Sequence[str] = (),
    lists: Mapping[str, Sequence[str]] | None = None,
    text: Mapping[str, str] | None = None,
    **single: str,
) -> Service:
    """A unit whose ExecStart= lines run the commands; its other properties by name, or in `text`."""
    return Service(
        name=single.get("Id", _SINGLE["Id"]),
        text={**_SINGLE, **(text or {}), **single},
        lists={name: list((lists or {}).get(name, ())) for name in _LISTS},
        commands=[str(command) for command in commands],
        arguments=list(arguments),
    )


def shown(
    *commands: str,
    lists: Mapping[str, Sequence[str]] | None = None,
    text: Mapping[str, str] | None = None,
    **single: str,
) -> str:
    """What systemctl show prints of a unit."""
    lines = [
        f"ExecStart={{ path={line.split()[0]} ; argv[]={line} ; ignore_errors=no ; start_time=[n/a] ; status=0/0 }}"
        for line in commands
    ]
    lines += [f"{key}={value}" for key, value in {**_SINGLE, **(text or {}), **single}.items()]
    lines += [f"{key}={' '.join((lists or {}).get(key, ()))}" for key in _LISTS]
    return "\n".join(lines) + "\n"


class Systemctl:
    """An executable in the place of systemctl. It knows one unit, in states that follow each other."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here = directory / "systemctl-answers"
        (self._here / "states").mkdir(parents=True)
        program = directory / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(_SYSTEMCTL.format(here=self._here))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        self.cgroups = directory / "cgroups"
        monkeypatch.setattr(systemd, "CGROUP_ROOTS", (str(self.cgroups),))
        self.manager("")
        self.restart(":")
        self.reload_fails(False)

    def states(self, *texts: str) -> None:
        """Answers to show, one after the other; the last one stays."""
        for old in (self._here / "states").iterdir():
            old.unlink()
        for number, text in enumerate(texts):
            (self._here / "states" / f"{number:03}").write_text(text)

    def manager(self, text: str) -> None:
        """The answer to show-environment."""
        (self._here / "environment").write_text(text)

    def reload_fails(self, fails: bool) -> None:
        (self._here / "reload-status").write_text(str(int(fails)))

    def restart(self, script: str) -> None:
        """What a restart does, as a line of shell."""
        (self._here / "restart").write_text(f"{script}\n")

    def processes(self, group: str, *pids: int) -> None:
        """Put processes into a control group."""
        path = self.cgroups / group.lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    @property
    def calls(self) -> list[str]:
        """The arguments of every call but the questions."""
        return [line for line in self._all() if "show" not in line]

    @property
    def questions(self) -> list[str]:
        return [line for line in self._all() if "show" in line]

    def _all(self) -> list[str]:
        path = self._here / "calls"
        return path.read_text().splitlines() if path.exists() else []
