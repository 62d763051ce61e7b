# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service that is odd in one way is profiled, refused with the reason, or put back; never is it just called fine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from ansible_collections.offheap.profiler.tests.integration import small_services
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost
from ansible_collections.offheap.profiler.tests.integration.playbooks import PlaybookResult

pytestmark = pytest.mark.usefixtures("quiet_lab")

HOST = "app1"
# Kills the process for the first rename(2) of any of its threads, as an application's own filter may.
KILLS = """
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]
line = struct.Struct("HBBI").pack
lines = line(0x20, 0, 0, 0) + line(0x15, 0, 1, 82) + line(6, 0, 0, 0x80000000) + line(6, 0, 0, 0x7FFF0000)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(317, 1, 1, ctypes.byref(Filter(4, lines))) == 0
"""


class Odd(NamedTuple):
    """A service, and what enabling must say of it; "" if it must be profiled. ``name`` ends up in the unit's name.
    One that is ``like`` another is left to make soak."""

    name: str
    begin: str = ""
    lines: str = ""
    says: str = ""
    like: str = ""


SERVICES = [
    Odd("plain", like="setuid"),
    Odd("killed", begin=KILLS, says="ended while it wrote a dump"),
    Odd("setuid", begin="os.setgid(65534); os.setuid(65534)"),
    # A container has a filter of system calls, under which the agent shares the service's root.
    Odd("chrooted", begin="os.chroot('/srv'); os.chdir('/')", says="No such file or directory"),
    Odd("few-files", lines="LimitNOFILE=5", says="LimitNOFILE=5"),
    Odd("hidden-paths", lines="TemporaryFileSystem=/opt /var"),
    Odd("strict\\x20one", lines="User=app\nProtectSystem=strict", like="dynamic\\x20one"),
    Odd("dynamic\\x20one", lines="DynamicUser=yes"),
    Odd("small-files", lines="LimitFSIZE=4096", says="LimitFSIZE=4096", like="few-files"),
]
CASES = [pytest.param(odd, id=odd.name, marks=[pytest.mark.soak_only] if odd.like else []) for odd in SERVICES]


@pytest.fixture(scope="module")
def variables(library: dict[str, Any]) -> dict[str, Any]:
    return {
        **library,
        "profiled_service_healthy_seconds": 6,
        "profiled_service_agent_settings": {"start_delay": 2},
    }


@pytest.fixture(scope="module", autouse=True)
def purged(playbook: Callable[..., PlaybookResult]) -> Iterator[None]:
    yield
    playbook("rollback.yml", limit=HOST, extra_vars={"rollback_purge": True, "rollback_discard": True}).check()


@pytest.mark.parametrize("odd", CASES)
def test_what_is_said_of(
    playbook: Callable[..., PlaybookResult], host: Callable[[str], LabHost], variables: dict[str, Any], odd: Odd
) -> None:
    on = host(HOST)
    with small_services.installed(on, odd.name, odd.begin, odd.lines) as unit:
        result = playbook("enable-profiling.yml", limit=HOST, extra_vars={**variables, "offheap_units": [unit]})
        if odd.says:
            assert result.rc != 0 and odd.says in result.failures(HOST)
            assert not any("/opt/offheap" in path for path in on.mapped(unit)), "it runs as before"
            return
        result.check()
        pid = on.main_pid(unit)
        sidecars = on.run(f"cat '/var/lib/offheap/{unit}/'*.heap.json").stdout.splitlines()
        assert pid in [json.loads(line)["pid"] for line in sidecars]
        playbook("switch-profiling.yml", limit=HOST, extra_vars={"offheap_units": [unit], "state": "dump"}).check()
        playbook("rollback.yml", limit=HOST).check()
