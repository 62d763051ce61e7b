# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The hosts of an Ansible inventory, with what their connections need."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..plugins.plugin_utils.base.options import user_path
from .target import Target, TargetError

_READER = Path(__file__).with_name("read_inventory.py")
_TRUE = ("1", "on", "t", "true", "y", "yes")


#: the reader that was started but not asked yet, if any; it ends with us
_begun: list[subprocess.Popen[str]] = []


def begin() -> None:
    """Let the reader load Ansible, its slowest part, while we do something else."""
    if not _begun:
        pipe = subprocess.PIPE
        command = [sys.executable, str(_READER)]
        _begun.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))


def targets(sources: Sequence[str], limit: str) -> list[Target]:
    """The hosts that match ``limit``, an Ansible pattern; by default from ansible.cfg. Raises TargetError."""
    for source in sources:
        if "," not in source and not user_path(source).exists():
            raise TargetError(f"there is no inventory {source}; a list of hosts needs a comma, as in -i app1,")
    begin()
    said, problems = _begun.pop().communicate(json.dumps([limit, *sources]))
    try:
        found = json.loads(said)
    except ValueError as error:
        raise TargetError(f"cannot read the inventory: {problems.strip()}") from error
    if not found:
        reason = f"no host of the inventory matches {limit!r}" if limit else "the inventory has no hosts"
        raise TargetError(f"{reason}; name hosts with -H HOST,HOST or an inventory with -i")
    return [_target(variables) for variables in found]


def _target(variables: Mapping[str, str]) -> Target:
    def value(*names: str) -> str:
        return next((variables[f"ansible_{name}"] for name in names if variables.get(f"ansible_{name}")), "")

    name = variables["name"]
    method = value("become_method") or "sudo"
    if method.rpartition(".")[2] != "sudo":
        raise TargetError(f"{name}: the console becomes root only by sudo, but ansible_become_method is {method}")
    arguments = []
    for flag, found in (
        ("-i", value("ssh_private_key_file", "private_key_file")),
        ("-p", value("port", "ssh_port")),
        ("-l", value("user", "ssh_user")),
    ):
        arguments += [flag, found] if found else []
    for option in ("ssh_common_args", "ssh_extra_args"):
        try:
            arguments += shlex.split(value(option))
        except ValueError as error:
            raise TargetError(f"{name}: ansible_{option} is no list of words: {error}") from error
    python = value("python_interpreter")
    return Target(
        name,
        value("host", "ssh_host") or name,
        tuple(arguments),
        value("password", "ssh_pass", "ssh_password") or None,
        "python3" if not python or python.startswith("auto") else python,
        # Like the playbooks of this collection, become root by default.
        value("become").lower() in _TRUE if value("become") else True,
        value("become_user") or "root",
        value("become_password", "become_pass") or None,
        value("connection").rpartition(".")[2] == "local",
    )
