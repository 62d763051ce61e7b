# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Commands that systemd runs as root beside a service, where jemalloc would dump in them."""

from __future__ import annotations

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host.systemd import Assignment
from ansible_collections.offheap.profiler.plugins.module_utils.unit import root_commands
from ansible_collections.offheap.profiler.tests.unit.fakes.refusals import refusal
from ansible_collections.offheap.profiler.tests.unit.fakes.units import unit

DUMPS = "prof:true,lg_prof_interval:30,prof_prefix:/s/jeprof"


def check(*lines: str, conf: str = DUMPS, **single: str) -> None:
    pairs = [line.partition("=") for line in lines]
    own = [Assignment(key, value, "/etc/systemd/system/web.service") for key, _equals, value in pairs]
    root_commands.check(unit("/bin/web", text={"User": "nobody", **single}), own, {"MALLOC_CONF": conf})


def test_helpers_of_an_old_unit() -> None:
    refusal(lambda: check("PermissionsStartOnly=true", "ExecStartPre=/bin/prepare"), "root-command", "ExecStartPre=")
    check("PermissionsStartOnly=true", "ExecStart=/bin/web")
    check("PermissionsStartOnly=true", "ExecStartPre=/bin/prepare", "PermissionsStartOnly=no")


@pytest.mark.parametrize("line", ["ExecStartPre=/bin/prepare +x !y", "ExecStartPre=!!/bin/prepare", "Environment=+a"])
def test_commands_of_the_service_s_user(line: str) -> None:
    check(line)


def test_what_is_taken_back() -> None:
    check("ExecStartPre=+/bin/prepare", "ExecStartPre=", "ExecStartPre=/bin/other")


def test_where_no_harm_is_done() -> None:
    line = "ExecStartPre=+/bin/prepare"
    check(line, User="")
    check(line, User="root")
    check(line, conf="prof:true,prof_active:false,prof_final:false,lg_prof_interval:-1")
