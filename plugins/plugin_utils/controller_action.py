# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the action plugins share that do all of their work on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible.module_utils.basic import missing_required_lib
from ansible.plugins.action import ActionBase


class ControllerAction(ActionBase):
    """Connects to no host. A subclass gives its C(ARGUMENTS) and does its C(work)."""

    ARGUMENTS: ClassVar[dict[str, dict[str, Any]]]

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(self.ARGUMENTS)  # type: ignore[no-untyped-call]
        warnings: list[str] = []
        self.work(arguments, result, warnings)
        if warnings:
            result["warnings"] = warnings
        return result

    def work(self, arguments: dict[str, Any], result: dict[str, Any], warnings: list[str]) -> None:
        """Fill in the result. Raises AnsibleActionFail."""
        raise NotImplementedError


def require(libraries: Mapping[str, bool]) -> None:
    """Raises AnsibleActionFail, in Ansible's own words, for the first of the libraries that is missing (true)."""
    for library, is_missing in libraries.items():
        if is_missing:
            raise AnsibleActionFail(missing_required_lib(library))


def from_here(path: str) -> Path:
    """The path, which begins at the directory that C(ansible-playbook) was started in."""
    return Path.cwd() / Path(path).expanduser()


def from_here_if_any(path: str | None) -> Path | None:
    """The same of an option that may be left out."""
    return from_here(path) if path else None
