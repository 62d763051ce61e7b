# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which unit's agents get a command; tests/agent has what they do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client, commands
from ansible_collections.offheap.profiler.tests.unit.fakes import units


def test_a_unit_that_is_named_by_an_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets have the unit's own name."""
    units.Systemctl(tmp_path, monkeypatch).states(units.shown("/bin/true", Id="none-of-this-host.service"))
    parameters = {"command": "status", "pid": None, "timeout": 1}
    with pytest.raises(client.AgentError, match="no process of none-of-this-host"):
        commands.control(parameters, "alias.service", False)
