# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Bring a lake up to date with an archive, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive import far_archive
from ..plugin_utils.base import libraries, progress
from ..plugin_utils.columns.lake import Lake
from ..plugin_utils.columns.series_reader import reading

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "lake": {"type": "path", "required": True},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "compact": {"type": "bool", "default": False},
    "rebuild": {"type": "bool", "default": False},
    "cluster": {"type": "str", "default": ""},
}

display = Display()


class ActionModule(ActionBase):
    """Reads the archive and connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        hosts, check_mode = arguments["hosts"], bool(self._task.check_mode)
        if arguments["rebuild"] and hosts:
            raise AnsibleActionFail("rebuild makes the lake of all hosts: leave out hosts")
        told = progress.for_people(lambda text: display.display(text, stderr=True))
        try:
            libraries.require(*libraries.JUDGING, "deltalake")
            archive, lake = far_archive.opened(arguments["archive"]), Lake(arguments["lake"])
            captures = [
                capture
                for unit in archive.units()
                for host in archive.hosts(unit)
                if not hosts or host in hosts
                for capture in archive.captures(unit, host, warnings.append)
            ]
            if arguments["rebuild"] and not check_mode:
                lake.delete()
            with reading(archive, warnings.append, check_mode, told, arguments["cluster"]) as reader:
                told.at(f"adding to {lake.place}")
                again = arguments["rebuild"] and check_mode
                added = len(captures) if again else lake.add(archive, reader, captures, warnings.append, check_mode)
            if arguments["compact"] and not check_mode:
                result["files"] = lake.compact()
        except (OffheapError, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        result.update(changed=bool(added or arguments["compact"]), captures=added)
        if warnings:
            result["warnings"] = warnings
        return result
