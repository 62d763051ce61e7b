# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Remove old captures from an archive, on the controller."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail

from ..plugin_utils import retention
from ..plugin_utils.archive import Archive, ArchiveError, zstandard_missing
from ..plugin_utils.controller_action import ControllerAction, from_here, require

_DAY = 86400.0
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "keep_days": {"type": "float", "default": 0.0},
    "keep_captures": {"type": "int", "default": 0},
    "keep_size": {"type": "bytes", "default": "0"},
}


class ActionModule(ControllerAction):
    """Connects to no host."""

    ARGUMENTS = _ARGUMENTS

    def work(self, arguments: dict[str, Any], result: dict[str, Any], warnings: list[str]) -> None:
        require({"zstandard": zstandard_missing()})
        limits = retention.Limits(
            age=arguments["keep_days"] * _DAY, count=arguments["keep_captures"], size=arguments["keep_size"]
        )
        if min(limits.age, limits.count, limits.size) < 0:
            raise AnsibleActionFail("a limit of archive_prune is negative; 0 is without limit")
        try:
            archive = Archive.open(from_here(arguments["archive"]))
            removed, size = retention.prune(archive, limits, time.time(), dry=self._task.check_mode)
        except (ArchiveError, OSError) as error:
            raise AnsibleActionFail(str(error)) from error
        paths = [str(capture.path.relative_to(archive.root)) for capture in removed]
        result.update(changed=bool(removed), removed=paths, bytes=size)
