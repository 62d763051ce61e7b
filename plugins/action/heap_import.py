# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles of other tools into the archive, on the controller."""

from __future__ import annotations

import contextlib
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.base import progress
from ..plugin_utils.base.durations import seconds_of
from ..plugin_utils.base.options import from_here
from ..plugin_utils.driver import told_options
from ..plugin_utils.driver.imports import Imported, Origin, import_profiles
from ..plugin_utils.publish.profile_server import Server
from ..plugin_utils.publish.stored_profiles import brought

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "src": {"type": "list", "elements": "path"},
    "server": {"type": "str"},
    "query": {"type": "str"},
    "since": {"type": "str"},
    "headers": {"type": "dict", "default": {}, "no_log": True},
    "archive": {"type": "path", "required": True},
    "unit": {"type": "str", "required": True},
    "host": {"type": "str", "required": True},
    "time": {"type": "str"},
    "process": {"type": "int", "default": 0},
    "label": {"type": "str"},
    "binary_path": {"type": "list", "elements": "path", "default": []},
    **told_options.ARGUMENTS,
}
_RULES: dict[str, Any] = {
    "required_one_of": [("src", "server")],
    "mutually_exclusive": [("src", "server"), ("time", "server")],
    "required_together": [("server", "query")],
    "required_by": {"since": "server"},
}

display = Display()


class ActionModule(ActionBase):
    """Reads files of the controller, or asks a server of profiles. Connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS, **_RULES)  # type: ignore[no-untyped-call]
        try:
            origin = Origin(
                arguments["unit"],
                arguments["host"],
                arguments["process"],
                arguments["label"] or None,
                seconds_of(arguments["time"]) if arguments["time"] else None,
                told_options.told(arguments),
            )
            images = [from_here(path) for path in arguments["binary_path"]]
            with contextlib.ExitStack() as stack:
                files = list(map(from_here, arguments["src"] or []))
                if arguments["server"]:
                    headers = {str(name): str(value) for name, value in arguments["headers"].items()}
                    server = Server(arguments["server"], headers=headers)
                    told = progress.for_people(lambda text: display.display(text, stderr=True))
                    asked = brought(server, arguments["query"], arguments["since"] or "", told)
                    files = stack.enter_context(asked)
                found = import_profiles(files, origin, arguments["archive"], images, self._task.check_mode)
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        result.update(changed=any(one.new for one in found), captures=list(map(_told, found)))
        if self._task.diff and result["changed"]:
            result["diff"] = [{"prepared": f"imported: {one.file} as {one.path}\n"} for one in found if one.new]
        return result


def _told(one: Imported) -> dict[str, Any]:
    return {
        "src": str(one.file),
        "path": str(one.path),
        "new": one.new,
        "source": one.facts.source,
        "measure": one.facts.measure,
        "time": one.facts.dump.time,
        "time_from": one.clock,
    }
