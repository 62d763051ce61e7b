# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half of installed_build: it sends the tarball."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils.base.options import from_here


class ActionModule(ActionBase):
    """Runs the module of the same name on the host."""

    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("tarball"):
            if self._task.check_mode:
                told = f"{arguments['path']} would be installed"
                return {**result, "changed": True, "msg": told, "_ansible_verbose_always": True}
            tarball = from_here(arguments["tarball"])
            arguments["sha256"] = arguments.get("sha256") or _recorded(tarball)
            arguments["tarball"] = self._make_tmp_path() + tarball.name
            self._transfer_file(str(tarball), arguments["tarball"])  # type: ignore[no-untyped-call]
        name = "offheap.profiler.installed_build"
        return {**result, **self._execute_module(module_name=name, module_args=arguments, task_vars=task_vars)}


def _recorded(tarball: Path) -> str:
    """Its SHA-256, from the record that its build left beside it. Raises AnsibleActionFail if that build has failed."""
    try:
        return str(json.loads(Path(f"{tarball}.json").read_text())["sha256"])
    except FileNotFoundError:
        raise AnsibleActionFail(f"There is no {tarball}: its build left no result. The tasks above say why.") from None
