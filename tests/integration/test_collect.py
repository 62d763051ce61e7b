# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Collecting from three hosts: what is brought, what is left, and what happens when a host dies meanwhile.

The dumps are real ones of a process on this machine, put into spools on the hosts: what is tested here is their way.
The dumps of live services are brought in test_hunt.py.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult, Task
from ansible_collections.offheap.profiler.tests.integration.spools import OWNER, SPOOL, UNIT, put
from ansible_collections.offheap.profiler.tests.unit.strategies.leaky_archives import dump_of

MIB = 1 << 20
# A sudo that is not as by default is left to Ansible, so dumps are packed on the host's disk.
PACKED = {"ansible_become_flags": "-n -S -H"}

# Runs on a host: a large dump that hardly shrinks, so that its transfer takes some seconds.
LARGE = """
import base64, os, sys
whole = open(sys.argv[1], "rb").read()
head, tail = whole.split(b"\\n", 1)[0] + b"\\n", whole[whole.index(b"\\nMAPPED_LIBRARIES:"):]
with open(sys.argv[2], "wb") as stream:
    stream.write(head)
    for _ in range(int(sys.argv[3])):
        stream.write(base64.b64encode(os.urandom(768 << 10)) + b"\\n")
    stream.write(tail)
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def collect(collection: Path, controller: Controller, archive: Path) -> Callable[..., PlaybookResult]:
    """Runs the playbook into a new archive."""

    def run(check: bool = False, limit: str | None = None, **variables: Any) -> PlaybookResult:
        return controller.playbook(
            "collect-profiles.yml",
            check=check,
            limit=limit,
            extra_vars={"offheap_archive": str(archive), "heap_collect_units": ["collecttest"], **variables},
        )

    return run


def fetched(result: PlaybookResult, host: str) -> Task:
    return next(task for task in result.of(host) if task.action.endswith("heap_fetch"))


def names(host: LabHost, directory: str = SPOOL) -> list[str]:
    return host.run(f"ls {directory} 2>/dev/null; true").stdout.split()


def remains(host: LabHost) -> str:
    """What packing has left in the login user's temporary directory."""
    return host.run("find /home/deploy/.ansible/tmp -type f 2>/dev/null; true").stdout


def is_whole(archive: Path) -> bool:
    """Nothing half-written is in the archive, and everything in it can be read."""
    captures = Archive.open(archive).captures()
    assert all(len(dump_of(capture)) == capture.facts.dump.size for capture in captures)
    return list((archive / ".incoming").iterdir()) == []


def test_bringing_and_bringing_again(
    hosts: dict[str, LabHost], dumps: list[bytes], collect: Callable[..., PlaybookResult], archive: Path
) -> None:
    foretold = collect(check=True).check()
    assert not archive.exists()
    assert {name: len(names(host)) for name, host in hosts.items()} == dict.fromkeys(hosts, len(dumps))
    brought = collect().check()
    for name in hosts:
        result, promise = fetched(brought, name).result, fetched(foretold, name).result
        assert result["captures"] == promise["captures"]
        assert set(result["images"]) <= set(promise["images"]), "another host may have brought it first"
        assert f"{name}: {len(dumps)} capture{'s' * (len(dumps) != 1)} of {UNIT}" in result["summary"]
        assert result["streamed"]
        assert names(hosts[name]) == ["collected"]
        assert len(names(hosts[name], f"{SPOOL}/collected")) == len(dumps)
        assert remains(hosts[name]) == ""
    captures = Archive.open(archive).captures()
    assert [(found.host, found.sequence) for found in captures] == [(h, s) for h in hosts for s in range(len(dumps))]
    assert [dump_of(found) for found in captures] == dumps * 3
    assert len({found.process for found in captures}) == 3, "one process on each host"
    assert is_whole(archive)
    again = collect().check()
    assert {name: stats.changed for name, stats in again.stats.items()} == dict.fromkeys(hosts, 0)
    assert fetched(again, "app1").result["summary"] == "app1: no new captures"


def test_in_several_transfers_and_deleted_on_the_host(
    hosts: dict[str, LabHost], dumps: list[bytes], collect: Callable[..., PlaybookResult], archive: Path
) -> None:
    brought = collect(heap_collect_max_batch=str(len(dumps[0]) + 1), heap_collect_delete_collected=True).check()
    assert "transfer 1 of " in brought.stdout
    assert {name: names(host) for name, host in hosts.items()} == {name: [] for name in hosts}
    assert len(Archive.open(archive).captures()) == 9


def test_what_is_not_brought(
    hosts: dict[str, LabHost], dumps: list[bytes], collect: Callable[..., PlaybookResult], archive: Path
) -> None:
    host = hosts["app2"]
    host.run(f"rm {SPOOL}/*")
    put(host, "jeprof.9.0.i0.heap", dumps[0][: len(dumps[0]) // 2])
    put(host, "jeprof.9.1.i1.heap", dumps[0].replace(b"heap_v2", b"heap_v3", 1))
    put(host, "jeprof.9.2.i2.heap", dumps[0])
    host.run(f"ln -s /etc/shadow {SPOOL}/jeprof.9.3.i3.heap; ln {SPOOL}/jeprof.9.2.i2.heap {SPOOL}/second-name")
    host.run(f"mkfifo {SPOOL}/jeprof.9.4.i4.heap; chown {OWNER} {SPOOL}/jeprof.9.4.i4.heap")
    before = host.run(f"ls -lA --time-style=full-iso {SPOOL}").stdout
    result = fetched(collect(limit="app2").check(), "app2").result
    assert result["captures"] == []
    assert [other["name"] for other in result["incomplete"]] == ["jeprof.9.0.i0.heap"]
    reasons = {other["name"]: other["reason"] for other in result["unreadable"]}
    assert set(reasons) == {f"jeprof.9.{number}.i{number}.heap" for number in (1, 2, 3, 4)}
    assert "heap_v3" in reasons["jeprof.9.1.i1.heap"]
    assert "hard links" in reasons["jeprof.9.2.i2.heap"]
    assert "it is a link" in reasons["jeprof.9.3.i3.heap"]
    assert "not an ordinary file" in reasons["jeprof.9.4.i4.heap"]
    assert len(result["warnings"]) == 2
    assert host.run(f"ls -lA --time-style=full-iso {SPOOL}").stdout == before
    assert Archive.open(archive).captures() == []


def test_planted_directory_for_what_was_collected(
    hosts: dict[str, LabHost], dumps: list[bytes], collect: Callable[..., PlaybookResult], archive: Path
) -> None:
    host = hosts["app1"]
    host.run(f"mkdir /root/victim; ln -s /root/victim {SPOOL}/collected")
    result = fetched(collect(limit="app1").check(), "app1").result
    assert len(result["captures"]) == len(dumps), "they are brought, but stay on the host"
    assert any("not a directory, so dumps are left where they are" in warning for warning in result["warnings"])
    assert names(host, "/root/victim") == []
    assert fetched(collect(limit="app1").check(), "app1").result["captures"] == [], "and are not brought twice"
    host.run(f"rmdir /root/victim; rm {SPOOL}/collected")
    assert fetched(collect(limit="app1").check(), "app1").result["collected"] == len(dumps)


def test_spool_of_a_transient_user(
    hosts: dict[str, LabHost], dumps: list[bytes], collect: Callable[..., PlaybookResult], archive: Path
) -> None:
    host = hosts["app3"]
    private = f"/var/lib/private/offheap/{UNIT}"
    host.run(f"mkdir -p /var/lib/private/offheap; chmod 700 /var/lib/private; mv {SPOOL} {private}")
    host.run(f"ln -s ../private/offheap/{UNIT} {SPOOL}")
    assert len(fetched(collect(limit="app3").check(), "app3").result["captures"]) == len(dumps)
    assert names(host, private) == ["collected"]


@pytest.mark.parametrize("method", ["sudo", "su"])
def test_become_with_a_password(
    hosts: dict[str, LabHost], dumps: list[bytes], collect: Callable[..., PlaybookResult], method: str
) -> None:
    host = hosts["app2"]
    host.run("id ops || useradd -m -s /bin/bash ops; printf '%s\n' root:geheim ops:offen | chpasswd")
    host.run("mkdir -p /home/ops/.ssh; cp /home/deploy/.ssh/authorized_keys /home/ops/.ssh/; chown -R ops: /home/ops")
    host.run("echo 'ops ALL=(ALL) ALL' > /etc/sudoers.d/ops")
    password = {"sudo": "offen", "su": "geheim"}[method]
    try:
        login = {"ansible_user": "ops", "ansible_become_method": method, "ansible_become_password": password}
        brought = fetched(collect(limit="app2", **login).check(), "app2").result
        assert len(brought["captures"]) == len(dumps)
        assert brought["streamed"] == (method == "sudo")
        assert host.run("find /home/ops/.ansible/tmp -type f 2>/dev/null; true").stdout == ""
        wrong = collect(limit="app2", **{**login, "ansible_become_password": "falsch"})
        assert wrong.rc != 0
    finally:
        # The user's manager is stopped first: one that is killed counts as a failed unit of the host.
        host.run("rm /etc/sudoers.d/ops; systemctl stop user@$(id -u ops); pkill -KILL -u ops", check=False)
        host.run("userdel -r ops; passwd -l root", check=False)


def test_too_little_room_on_the_host(
    hosts: dict[str, LabHost], dumps: list[bytes], collect: Callable[..., PlaybookResult], archive: Path
) -> None:
    host = hosts["app1"]
    host.run("mkdir -p /mnt/small; mount -t tmpfs -o size=1m,mode=1777 tmpfs /mnt/small")
    try:
        failed = collect(limit="app1", ansible_remote_tmp="/mnt/small/tmp", **PACKED)
        assert failed.rc != 0
        assert "packing needs up to" in failed.failures("app1")
        assert "ansible_remote_tmp" in failed.failures("app1")
        host.run("mount -o remount,size=20m /mnt/small")
        brought = collect(limit="app1", ansible_remote_tmp="/mnt/small/tmp", **PACKED).check()
        assert "transfer 2 of " in brought.stdout, "smaller transfers, one after the other"
        assert len(fetched(brought, "app1").result["captures"]) == len(dumps)
        assert host.run("find /mnt/small -type f").stdout == ""
    finally:
        host.run("umount /mnt/small; rmdir /mnt/small", check=False)


def _size(path: Path) -> int:
    """Bytes of a file; 0 when it is gone: the transfers of the other hosts are over in a moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _stop_half_way(archive: Path) -> int:
    """Stop the process that writes a large transfer, to have time to do harm. Its number, 0 until there is one."""
    for path in archive.glob(".incoming/*/transfer.tar"):
        if _size(path) > 8 * MIB:
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    # Only Ansible's are looked through, or the transfer may be over before the right one is found.
                    if b"ansible" in (process / "cmdline").read_bytes() and any(
                        descriptor.readlink() == path for descriptor in (process / "fd").iterdir()
                    ):
                        os.kill(int(process.name), signal.SIGSTOP)
                        return int(process.name)
    return 0


@pytest.mark.parametrize(
    "death",
    [
        "connection killed",
        pytest.param("connection killed, packed", marks=pytest.mark.soak_only),
        "network gone, SSH notices",
        pytest.param("network gone, time is up", marks=pytest.mark.soak_only),
        pytest.param("network gone, packed, time is up", marks=pytest.mark.soak_only),
    ],
)
def test_a_host_that_dies_during_the_transfer(
    hosts: dict[str, LabHost],
    dumps: list[bytes],
    booted_lab: Lab,
    collect: Callable[..., PlaybookResult],
    archive: Path,
    death: str,
) -> None:
    host = hosts["app2"]
    large = f"{SPOOL}/jeprof.999991.9.i9.heap"
    host.run(
        f"python3 -c {shlex.quote(LARGE)} {SPOOL}/jeprof.999991.0.i0.heap {large} 96 && chown {OWNER} {large}",
        timeout=300,
    )
    variables: dict[str, Any] = dict(PACKED) if "packed" in death else {}
    if "time is up" in death:
        variables |= {"heap_collect_timeout": 60, "ansible_ssh_extra_args": "-o ServerAliveInterval=0"}
    done: list[PlaybookResult] = []
    runner = threading.Thread(target=lambda: done.append(collect(**variables)))
    runner.start()

    stopped = wait_for(lambda: _stop_half_way(archive), "app2's transfer is under way", timeout=120, interval=0.02)
    try:
        if "connection killed" in death:
            # for a while: Ansible itself tries again, with other ways of transfer
            host.run("systemd-run --on-active=15 --timer-property=AccuracySec=1s systemctl start ssh")
            host.run("systemctl stop ssh; pkill -KILL -u deploy sshd", check=False)
        else:
            booted_lab.command("unplug", "app2")
        os.kill(stopped, signal.SIGCONT)
        runner.join(timeout=150)
        assert done, "the playbook waits for a host that is gone"
    finally:
        booted_lab.command("plug", "app2")
        runner.join(timeout=300)
        wait_for(lambda: booted_lab.command("ssh", "app2", "true", check=False).returncode == 0, "app2 is back")
    result = done[0]
    assert result.rc != 0
    assert result.stats["app2"].failed + result.stats["app2"].unreachable == 1
    for name in ("app1", "app3"):
        assert result.stats[name].failed == result.stats[name].unreachable == 0
        assert len(fetched(result, name).result["captures"]) == len(dumps)
    assert is_whole(archive)
    assert {capture.host for capture in Archive.open(archive).captures()} == {"app1", "app3"}
    assert len(names(host)) == len(dumps) + 1, "nothing is lost on the host"
    host.run("find /home/deploy/.ansible -type f -exec touch -d '3 hours ago' {} +; true")
    again = collect(**(PACKED if "packed" in death else {})).check()
    assert remains(host) == "", "and nothing of the broken run is left there"
    assert len(fetched(again, "app2").result["captures"]) == len(dumps) + 1
    assert is_whole(archive)
    assert len(Archive.open(archive).captures()) == 10
