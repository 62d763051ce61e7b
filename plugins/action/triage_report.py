# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Say what kind of memory grows, from the samples of a fleet, on the controller."""

from __future__ import annotations

import json
from typing import Any

from ansible import constants, context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.formats import unit_name
from ..module_utils.formats.errors import OffheapError
from ..plugin_utils.base import output_file
from ..plugin_utils.base.options import from_here
from ..plugin_utils.triage import findings
from ..plugin_utils.triage.rules import Diagnosis

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "samples": {"type": "path", "default": "offheap/triage"},
    "dest": {"type": "path"},
    "units": {"type": "list", "elements": "str", "default": []},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "show": {"type": "bool", "default": True},
}
_COLORS = {
    Diagnosis.NOT_GROWING: "COLOR_OK",
    Diagnosis.CANNOT_TELL: "COLOR_WARN",
    Diagnosis.NATIVE_GROWTH: "COLOR_ERROR",
}

display = Display()


class ActionModule(ActionBase):
    """Reads the samples, writes the verdicts, prints the table. Connects to no host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        samples = from_here(arguments["samples"])
        dest = from_here(arguments["dest"]) if arguments["dest"] else samples / "verdicts.json"
        try:
            units = [unit_name.service(unit) for unit in arguments["units"]]
            inventories = context.CLIARGS.get("inventory") or ()
            found = findings.findings(samples, units, arguments["hosts"], warnings.append, inventories)
            if not found and not self._task.check_mode:
                raise AnsibleActionFail(
                    f"there is nothing to judge: {samples} has no looks at these units and hosts. The playbook triage"
                    " takes them on the hosts of the inventory (-i) for the units that offheap_units names"
                )
            verdicts = [finding.data for finding in found]
            text = json.dumps(verdicts, indent=2) + "\n"
            changed = output_file.write(dest, text.encode(), force=True, check_mode=self._task.check_mode)
        except OffheapError as error:
            raise AnsibleActionFail(str(error)) from None
        lines = findings.table(found)
        if arguments["show"]:
            for diagnosis, line in lines:
                name = _COLORS.get(diagnosis, "COLOR_CHANGED") if diagnosis else None
                display.display(line, color=constants.config.get_config_value(name) if name else None)
        result.update(changed=changed, dest=str(dest), verdicts=verdicts, summary=[line for _diagnosis, line in lines])
        if warnings:
            result["warnings"] = warnings
        return result
