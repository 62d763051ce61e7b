# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Runs a module's main() in this process, as Ansible would: arguments in, one JSON result out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from ansible.module_utils import basic


def run_module(
    main: Callable[[], NoReturn],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    check: bool = False,
    **arguments: Any,
) -> dict[str, Any]:
    """The result, with ``failed`` set by whether the module failed."""
    given = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True, "_ansible_remote_tmp": "/tmp"}
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": given}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy")
    # Where other tests have loaded Ansible's controller, a module's warnings would go to its display.
    monkeypatch.setattr("ansible.module_utils._internal.is_controller", False)
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main()
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert bool(exit_.value.code) == bool(result.get("failed")), result
    return {"failed": False, **result}
