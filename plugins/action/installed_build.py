# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The controller's half of installed_build: it sends the tarballs."""

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
        builds = [dict(build) for build in self._task.args.get("builds", [])]
        # In check mode, they may not have been built.
        if not self._task.check_mode:
            directory = self._make_tmp_path()
            for build in builds:
                tarball = from_here(build["tarball"])
                build["sha256"] = build.get("sha256") or _recorded(tarball)
                build["tarball"] = directory + tarball.name
                self._transfer_file(str(tarball), build["tarball"])  # type: ignore[no-untyped-call]
        name, asked = "offheap.profiler.installed_build", {"builds": builds}
        return {**result, **self._execute_module(module_name=name, module_args=asked, task_vars=task_vars)}


def _recorded(tarball: Path) -> str:
    """Its SHA-256, from the record that its build left beside it. Raises AnsibleActionFail if that build has failed."""
    try:
        return str(json.loads(Path(f"{tarball}.json").read_text())["sha256"])
    except FileNotFoundError:
        raise AnsibleActionFail(f"There is no {tarball}: its build left no result. The tasks above say why.") from None
