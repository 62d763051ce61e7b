# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Services under SELinux, which enforces Debian's policy: redis, which that confines, is refused before a restart, with
the rules to add; with these, and where a service is not confined, all works, and nothing is denied."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost
from ansible_collections.offheap.profiler.tests.integration.kernel.conftest import MACHINE, booted, controller_of

CONFINED, FREE = "redis-server", "vault"
_RULE = re.compile(r"\(allow \w+ \w+ \(\w+ \([\w ]+\)\)\)")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with booted("s", "--selinux") as one:
        yield one


def _domain(host: LabHost, unit: str) -> str:
    return host.run(f"cat /proc/{host.main_pid(unit)}/attr/current").stdout.strip("\0\n").split(":")[2]


def _listing(host: LabHost) -> list[str]:
    """Without what redis keeps, which it writes as it stops, who has logged in, and the policy, which semodule makes
    anew."""
    return [
        line for line in host.listing() if not re.search(r" (/var/lib/(redis|wtmpdb|selinux)|/etc/selinux)\b", line)
    ]


def _denied(host: LabHost) -> list[str]:
    """What was denied of what is ours, or to whom we look at; semodule, which the test runs, is not among these."""
    denials = re.findall("avc: +denied.*", host.run("dmesg").stdout)
    ours = [line for line in denials if re.search("offheap|redis|vault|ticker|python|systemctl", line)]
    return [line for line in ours if 'comm="semodule"' not in line]


def test_confined_and_free(lab: Lab, built_here: dict[str, Any]) -> None:
    host = lab.host(MACHINE)
    assert host.run("cat /sys/fs/selinux/enforce").stdout == "1"
    with controller_of(lab) as user:
        host.run(f"sysctl kernel.printk_ratelimit=0; systemctl start {CONFINED} {FREE}")
        domain = _domain(host, CONFINED)
        assert domain == "redis_t"
        before, pid, earlier = _listing(host), host.main_pid(CONFINED), _denied(host)
        variables = {
            **built_here,
            "offheap_hosts": MACHINE,
            "profiled_service_healthy_seconds": 3,
            "profiled_service_agent_settings": {"start_delay": 1},
        }
        refused = user.playbook("enable-profiling.yml", extra_vars={**variables, "offheap_units": [CONFINED]})
        assert refused.rc != 0
        told = refused.failures(MACHINE)
        assert f"{CONFINED}.service is unchanged: " in told and f":{domain}:" in told
        assert host.main_pid(CONFINED) == pid
        rules = _RULE.findall(told)
        assert f"(allow {domain} var_lib_t (dir (read write add_name remove_name)))" in rules
        assert not any("usr_t" in rule for rule in rules)  # our files are labelled as libraries

        host.run(f"printf '%s\\n' {shlex.join(rules)} >/root/offheap.cil; semodule -i /root/offheap.cil", timeout=600)
        user.playbook("enable-profiling.yml", extra_vars={**variables, "offheap_units": [CONFINED, FREE]}).check()
        user.playbook("switch-profiling.yml", extra_vars={"offheap_hosts": MACHINE, "state": "dump"}).check()
        for unit in (CONFINED, FREE):
            assert [name for name in host.mapped(unit) if name.startswith("/opt/offheap/")]
            assert host.run(f"ls /var/lib/offheap/{unit}.service/*.heap").stdout
        assert _domain(host, CONFINED) == domain
        collected = user.playbook("collect-profiles.yml", extra_vars={"offheap_hosts": MACHINE}).check()
        assert collected.changes(MACHINE)
        user.playbook("rollback.yml", extra_vars={"offheap_hosts": MACHINE, "rollback_purge": True}).check()
        assert _denied(host) == earlier
        host.run("semodule -r offheap; rm /root/offheap.cil", timeout=600)
        assert _listing(host) == before
