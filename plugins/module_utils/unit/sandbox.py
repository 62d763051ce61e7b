# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The settings that open a unit's sandbox to the library, the spool and the agent's socket, and nothing more.

Source: systemd.exec(5), "Sandboxing" and "Paths".
"""

from __future__ import annotations

import os
from typing import Sequence

from ansible_collections.offheap.profiler.plugins.module_utils.host import places, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_SEARCH = 0o001  # what others need to enter a directory
_EXECUTOR = "/usr/lib/systemd/systemd-executor"


def lines(service: Service, libraries: Sequence[str], spool: str | None) -> list[str]:
    """Settings that let the libraries, and the spool if any, through the unit's sandbox, and nothing more.

    Empty if none is needed, since each would give a mount namespace to a unit that has none. The leading dashes let
    the unit start even if somebody has removed a directory.
    """
    directories = [os.path.dirname(library) for library in libraries]
    _check_not_hidden(service, [*directories, *([spool] if spool else [])])
    opened = []
    if spool and service.text["DynamicUser"] == "yes" and _is_unreadable(spool):
        raise Refusal(
            "escaped-name",
            f"{service.name} has DynamicUser=yes, so systemd must make the directory of its dumps, but this systemd"
            " starts no unit with a directory whose name has a backslash. Give it a User=, or a name without escapes",
        )
    if spool and service.text["DynamicUser"] == "yes":
        # Only systemd knows the transient user, so systemd must make the spool.
        opened += _directory_lines(service, "StateDirectory", "/var/lib", spool)
        if int(service.text["UMask"] or "0", 8) & _SEARCH:
            # systemd 247 makes what is above it in the unit's view of the disk with the unit's own UMask.
            opened.append(f"BindReadOnlyPaths=-{places.PRIVATE_SPOOLS}")
    elif spool and (service.text["ProtectSystem"] == "strict" or _any_covers(service.lists["ReadOnlyPaths"], spool)):
        opened.append(f"ReadWritePaths=-{_escaped(spool)}")
    hidden = _hidden(service)
    opened += [f"BindReadOnlyPaths=-{_escaped(path)}" for path in directories if _any_covers(hidden, path)]
    if spool and _any_covers(hidden, spool):
        opened.append(f"BindPaths=-{_escaped(spool)}")
    no_exec = service.lists["NoExecPaths"]
    opened += [f"ExecPaths={_escaped(path)}" for path in directories if _any_covers(no_exec, path)]
    return opened


def _is_unreadable(path: str) -> bool:
    """Whether the path in StateDirectory= or RuntimeDirectory= would keep the unit from starting: since version 255
    systemd hands them to a program of its own, which fails at a backslash ("Failed to deserialize")."""
    return "\\" in path and os.path.exists(_EXECUTOR)


def _check_not_hidden(service: Service, ours: Sequence[str]) -> None:
    for path in service.lists["InaccessiblePaths"]:
        if any(_covers(path, place) for place in ours):
            raise Refusal(
                "hidden-paths",
                f"{service.name} has InaccessiblePaths={path}, which hides a library or the spool, or the agent's"
                " socket. Narrow it to what must be hidden",
            )


def _hidden(service: Service) -> list[str]:
    return [word.partition(":")[0] for word in service.lists["TemporaryFileSystem"]]


def _escaped(path: str) -> str:
    """A path without blanks as systemd reads it back: a unit's name may hold ``\\x20``, or a colon, which separates."""
    return path.replace("\\", "\\\\").replace("%", "%%").replace(":", "\\:")


def _directory_lines(service: Service, kind: str, root: str, path: str) -> list[str]:
    """Let systemd make one of our directories for the service's user, as a ``StateDirectory`` or ``RuntimeDirectory``.

    That changes the variable that names the service's own such directories, so we restore it.
    """
    ours = path[len(root) + 1 :]
    variable = {"StateDirectory": "STATE_DIRECTORY", "RuntimeDirectory": "RUNTIME_DIRECTORY"}[kind]
    theirs = [f"{root}/{word.partition(':')[0]}" for word in service.lists[kind] if word != ours]
    if not theirs:
        return [f"{kind}={_escaped(ours)}", f"UnsetEnvironment={variable}"]
    value = f"{variable}=" + ":".join(theirs)
    return [f"{kind}={_escaped(ours)}", "Environment=" + systemd.quote(value).replace("%", "%%")]


def socket_lines(service: Service) -> list[str]:
    """Settings that give the agent's control socket a directory while the unit runs, which its sandbox lets through.

    Raises Refusal if the agent could not be reached.
    """
    sockets = places.sockets_of(service.name)
    _check_not_hidden(service, [sockets])
    if _is_unreadable(sockets):
        # The agent listens at an abstract name then, which is one of its network namespace (unix(7)).
        if service.text["PrivateNetwork"] == "yes" or service.text["NetworkNamespacePath"]:
            raise Refusal(
                "escaped-name",
                f"{service.name} has a network of its own (PrivateNetwork=, NetworkNamespacePath=), where nobody could"
                " reach its agent: this systemd makes no directory for its socket, as the name has a backslash. Give it"
                " a name without escapes",
            )
        return []
    opened = _directory_lines(service, "RuntimeDirectory", "/run", sockets)
    return [*opened, f"BindPaths=-{_escaped(sockets)}"] if _any_covers(_hidden(service), sockets) else opened


def _any_covers(paths: Sequence[str], below: str) -> bool:
    return any(_covers(path, below) for path in paths)


def _covers(path: str, below: str) -> bool:
    path = path.lstrip("-+").rstrip("/")
    return below == path or below.startswith(path + "/")
