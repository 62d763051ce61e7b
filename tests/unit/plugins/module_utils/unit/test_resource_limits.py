# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Limits under which no dump can be written are named before anything is touched."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs
from ansible_collections.offheap.profiler.plugins.module_utils.unit import resource_limits
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import Refusal
from ansible_collections.offheap.profiler.tests.unit.fakes import programs
from ansible_collections.offheap.profiler.tests.unit.fakes.units import unit
from ansible_collections.offheap.profiler.tests.unit.plugins.module_utils.tracing.conftest import wait

NOBODY_HERE = 3999999999
# With an argument, it keeps root's right to lock as much as it likes.
LOCKS = """
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
int main(int count, char **arguments)
{
    struct rlimit limit = {8 << 20, 8 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) || (count == 1 && !getuid() && setuid(65534)))
        return 1;
    if (mlockall(MCL_CURRENT | MCL_FUTURE))
        return 2;
    sleep(60);
    return 0;
}
"""


@pytest.mark.parametrize("given", ["", "infinity", "1048576"])
def test_limits_that_leave_enough(given: str) -> None:
    service = unit("/bin/true", text={"LimitNOFILESoft": given, "LimitNPROCSoft": given})
    for uid in (0, NOBODY_HERE, None):
        resource_limits.check(service, uid)


@pytest.mark.parametrize("limit", ["LimitNOFILE", "LimitFSIZE", "LimitNPROC"])
def test_limits_that_are_too_low(limit: str) -> None:
    service = unit("/bin/true", text={f"{limit}Soft": "1"})
    for uid in (NOBODY_HERE, None):
        with pytest.raises(Refusal, match=f"{limit}=1, but needs .* Raise {limit} in the unit") as caught:
            resource_limits.check(service, uid)
        assert caught.value.reason == "limits"


def test_threads_of_the_user_s_other_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "pids", lambda: [1, 2])
    monkeypatch.setattr(procfs, "status", lambda _pid: {"Uid": "7\t7\t7\t7", "Threads": "3"})
    running = {"ActiveState": "active"}
    resource_limits.check(unit("/bin/true", text={"LimitNPROCSoft": "7", **running}), 7)
    with pytest.raises(Refusal, match="LimitNPROC=6, but needs 7"):
        resource_limits.check(unit("/bin/true", text={"LimitNPROCSoft": "6", **running}), 7)
    resource_limits.check(unit("/bin/true", text={"LimitNPROCSoft": "2", **running}), 8)


def test_root_s_processes_are_not_limited() -> None:
    resource_limits.check(unit("/bin/true", text={"LimitNPROCSoft": "1"}), 0)


@pytest.mark.parametrize(("limit", "setting"), [(resource.RLIMIT_DATA, "LimitDATA="), (resource.RLIMIT_AS, "LimitAS=")])
def test_a_process_that_may_not_have_as_much_memory(dynamic: Path, limit: int, setting: str) -> None:
    """It may have set that itself."""
    with programs.running(dynamic) as pid:
        service = unit(ActiveState="active", MainPID=str(pid))
        resource.prlimit(pid, limit, (120 << 20, resource.RLIM_INFINITY))
        with pytest.raises(Refusal, match=f"process {pid} .* below its limit of 120 MiB.*{setting}") as caught:
            resource_limits.check_memory(service)
        assert caught.value.reason == "limits"
        resource_limits.check_memory(service, replaces=False)
        resource.prlimit(pid, limit, (30 << 20, resource.RLIM_INFINITY))
        with pytest.raises(Refusal, match="the agent reserves up to 40 MiB"):
            resource_limits.check_memory(service, replaces=False)
        resource.prlimit(pid, limit, (1 << 40, resource.RLIM_INFINITY))
        resource_limits.check_memory(service)
    resource_limits.check_memory(service)  # it has ended


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.compiled(tmp_path_factory.mktemp("locks"), "locks", LOCKS)


def _locked(pid: int) -> bool:
    return not procfs.status(pid).get("VmLck", "0 kB").startswith("0 ")


def test_a_process_that_locks_its_memory_below_a_limit(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with programs.running(locks) as pid:
        wait(lambda: _locked(pid), "it has locked its memory")
        service = unit(ActiveState="active", MainPID=str(pid), User="web")
        for replaces, who in ((True, "the agent map at least 6 MiB"), (False, "the agent maps at least 28 MiB")):
            with pytest.raises(Refusal, match=f"process {pid} .* its limit of 8 MiB .* {who}.*LimitMEMLOCK=") as caught:
                resource_limits.check_memory(service, replaces)
            assert caught.value.reason == "limits"
        resource_limits.check_memory(unit(ActiveState="active", MainPID=str(pid)))  # root may have locked it
        monkeypatch.setattr(procfs, "limits", lambda _pid: {"Max locked memory": 64 << 20})
        resource_limits.check_memory(service)


@pytest.mark.skipif(os.geteuid() != 0, reason="root may lock as much as it likes")
def test_a_process_that_may_lock_as_much_as_it_likes(locks: Path) -> None:
    with programs.running(locks, "as root") as pid:
        wait(lambda: _locked(pid), "it has locked its memory")
        resource_limits.check_memory(unit(ActiveState="active", MainPID=str(pid), User="web"))
