# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service that AppArmor confines, by the kernel that does so: refused before it is restarted, with the lines to add;
with these lines, and without a profile, it works, and the kernel denies nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import apparmor
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost
from ansible_collections.offheap.profiler.tests.integration.kernel.conftest import MACHINE
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller

# What the program needs, and no more.
PROFILE = """\
#include <tunables/global>
profile ticker {
  #include <abstractions/base>
  /usr/local/bin/ticker mr,
  /run/systemd/notify w,
  #include if exists <local/ticker>
}
"""
UNITS = ("ticker", "vault")


@pytest.fixture(scope="module")
def confined(machine: LabHost, user: Controller) -> Iterator[LabHost]:
    """`ticker` is confined; `vault`, which runs the same program, is not."""
    drop_in = "/etc/systemd/system/ticker.service.d/confined.conf"
    machine.run(f"cat >/etc/apparmor.d/ticker <<'END'\n{PROFILE}END\napparmor_parser -r /etc/apparmor.d/ticker")
    machine.run(f"mkdir -p $(dirname {drop_in}); printf '[Service]\\nAppArmorProfile=ticker\\n' >{drop_in}")
    machine.run(f"systemctl daemon-reload; systemctl start {' '.join(UNITS)}")
    yield machine
    machine.run(f"systemctl stop {' '.join(UNITS)}; rm -r $(dirname {drop_in}); systemctl daemon-reload")
    machine.run("apparmor_parser -R /etc/apparmor.d/ticker; rm -f /etc/apparmor.d/ticker /etc/apparmor.d/local/ticker")


def _profile(host: LabHost, unit: str) -> str:
    return host.run(f"cat /proc/{host.main_pid(unit)}/attr/current").stdout.strip()


def test_confined_and_free(confined: LabHost, user: Controller, built_here: dict[str, Any]) -> None:
    assert [_profile(confined, unit) for unit in UNITS] == ["ticker (enforce)", "unconfined"]
    before, pid = confined.listing(), confined.main_pid("ticker")
    variables = {
        **built_here,
        "offheap_hosts": MACHINE,
        "profiled_service_healthy_seconds": 3,
        "profiled_service_agent_settings": {"start_delay": 1},
    }
    refused = user.playbook("enable-profiling.yml", extra_vars={**variables, "offheap_units": ["ticker"]})
    assert refused.rc != 0
    told = refused.failures(MACHINE)
    assert "ticker.service is unchanged: " in told
    assert all(line in told for line in apparmor.LINES)
    assert confined.main_pid("ticker") == pid

    confined.run(f"printf '%s\\n' {' '.join(repr(line) for line in apparmor.LINES)} >/etc/apparmor.d/local/ticker")
    confined.run("apparmor_parser -r /etc/apparmor.d/ticker")
    user.playbook("enable-profiling.yml", extra_vars={**variables, "offheap_units": list(UNITS)}).check()
    user.playbook("switch-profiling.yml", extra_vars={"offheap_hosts": MACHINE, "state": "dump"}).check()
    assert [_profile(confined, unit) for unit in UNITS] == ["ticker (enforce)", "unconfined"]
    for unit in UNITS:
        assert [name for name in confined.mapped(unit) if name.startswith("/opt/offheap/")]
        assert confined.run(f"ls /var/lib/offheap/{unit}.service/*.heap").stdout
    collected = user.playbook("collect-profiles.yml", extra_vars={"offheap_hosts": MACHINE}).check()
    assert collected.changes(MACHINE)

    user.playbook("rollback.yml", extra_vars={"offheap_hosts": MACHINE, "rollback_purge": True}).check()
    assert not re.findall('apparmor="DENIED".*', confined.run("dmesg").stdout)
    confined.run("rm /etc/apparmor.d/local/ticker")
    assert confined.listing() == before
