# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Copy an archive to or from any address that fsspec knows, on the controller."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.archive.archive import Archive
from ..plugin_utils.archive.remote import Remote
from ..plugin_utils.base import libraries
from ..plugin_utils.base.options import from_here

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "archive": {"type": "path", "required": True},
    "url": {"type": "str", "required": True},
    "direction": {"type": "str", "choices": ["push", "pull"], "required": True},
    "storage_options": {"type": "dict", "default": {}, "no_log": True},
}


class ActionModule(ActionBase):
    """Connects to no host but where the other archive is."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        root, check = from_here(arguments["archive"]), self._task.check_mode
        try:
            libraries.require("fsspec", "pyarrow", "zstandard")
            remote = Remote(arguments["url"], arguments["storage_options"])
            if arguments["direction"] == "push":
                copied = remote.push(Archive.open(root), check)
            else:
                copied = remote.pull(Archive.open(root) if check else Archive.create(root), warnings.append, check)
        except (OffheapError, OSError) as error:
            raise AnsibleActionFail(str(error)) from None
        changed = bool(copied.captures or copied.images)
        result.update(changed=changed, captures=copied.captures, images=copied.images)
        if warnings:
            result["warnings"] = warnings
        return result
