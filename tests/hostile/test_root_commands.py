# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service's user who waits with a link in the spool for a dump that root writes."""

from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.unit.test_root_commands import check


@pytest.mark.parametrize(
    "line",
    [
        "ExecStartPre=+/bin/prepare --password geheim",
        "ExecStartPre=-+/bin/prepare",
        "ExecStartPost=@!/bin/prepare prepare",
        "ExecStopPost=+-/bin/clean",
        "ExecCondition=:+/bin/test",
        "ExecReload=+/bin/reload",
        "ExecStop=+/bin/stop",
        "ExecStart=+/bin/web",
    ],
)
@pytest.mark.parametrize("option", ["lg_prof_interval:30", "prof_final:true", "prof_gdump:true"])
@pytest.mark.parametrize("user", [{"User": "nobody"}, {"DynamicUser": "yes"}], ids=str)
def test_root_beside_another_user_is_refused(line: str, option: str, user: dict[str, str]) -> None:
    name, key = option.partition(":")[0], line.partition("=")[0]
    conf = f"prof:true,{option}"
    message = refusal(lambda: check(line, conf=conf, **user), "root-command", f"({key}=)", name, "agent")
    assert "geheim" not in message
    check(line.replace("+", "").replace("!", ""), conf=conf, **user)
