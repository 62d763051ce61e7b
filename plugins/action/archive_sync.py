# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Copy an archive to or from any address that fsspec knows, on the controller."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive import far_archive
from ..plugin_utils.archive.archive import Archive
from ..plugin_utils.archive.capture import Capture
from ..plugin_utils.archive.remote import Remote
from ..plugin_utils.base import libraries, progress
from ..plugin_utils.columns import sample_cache
from ..plugin_utils.columns.parquet import NAME, SamplesError

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "url": {"type": "str", "required": True},
    "direction": {"type": "str", "choices": ["push", "pull"], "required": True},
    "storage_options": {"type": "dict", "default": {}, "no_log": True},
}

display = Display()


class ActionModule(ActionBase):
    """Connects to no host but the one of the other archive."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        name, check_mode = arguments["archive"], self._task.check_mode
        told = progress.for_people(lambda text: display.display(text, stderr=True))
        try:
            libraries.require("fsspec", "pyarrow", "zstandard")
            remote = Remote(arguments["url"], arguments["storage_options"])
            if arguments["direction"] == "push":
                archive = far_archive.opened(name)
                copied = remote.push(archive, functools.partial(_samples, archive), warnings.append, check_mode, told)
            else:
                archive = far_archive.created(name, check_mode)
                copied = remote.pull(archive, warnings.append, check_mode, told)
        except (OffheapError, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        changed = bool(copied.captures or copied.images)
        result.update(changed=changed, captures=copied.captures, images=copied.images)
        if warnings:
            result["warnings"] = warnings
        return result


def _samples(archive: Archive, capture: Capture, aside: Path) -> dict[str, Path]:
    """A capture's samples by file name, or nothing if there can be none."""
    try:
        return {NAME: sample_cache.of(archive, capture, None if os.access(archive.root, os.W_OK) else aside)}
    except SamplesError:
        return {}
