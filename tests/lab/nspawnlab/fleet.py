# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The hosts together: boots them, says which are alive, takes them down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

from . import access, cgroups, images, leaks, limits, network
from .access import Host
from .console import say
from .locks import locked
from .settings import MAX_HOSTS, LabError, Settings

_COMPLETE = "complete"  # a file that only a lab has whose 'up' was not killed

BOOT_TIMEOUT = 90.0  # seconds; sixteen hosts on two cores need four
KERNEL_TIMEOUT = 400.0  # one whose processor is emulated needs forty, and three times as many beside other work


def up(settings: Settings, count: int, suites: list[str]) -> None:
    """Boot ``count`` hosts with ``suites`` in turn; returns once each has booted and accepts SSH commands.

    A running lab with the same hosts stays as it is; remains of a dead one are removed first. Raises LabError if
    another lab of this name is up, or if a host does not boot.
    """
    if not 1 <= count <= MAX_HOSTS:
        raise LabError(f"--hosts is {count}, but must be 1 to {MAX_HOSTS}")
    hosts = [
        Host(index, f"app{index}", suite, images.image_path(settings, suite))
        for index, suite in enumerate(islice(cycle(suites), count), 1)
    ]
    with locked(settings.directory / f".{settings.name}.lock"):
        if _is_up(settings, hosts):
            say(f"already up: {', '.join(host.name for host in hosts)}")
            return
        if leaks.find(settings):
            say("removing what a dead lab left behind")
            _remove(settings)
        try:
            _start(settings, hosts)
        except BaseException:
            _remove(settings)
            raise
    say(f"up: inventory {settings.inventory}")


def down(settings: Settings) -> None:
    """End and remove everything of the lab. Works after a crash, and when nothing is up."""
    with locked(settings.directory / f".{settings.name}.lock"):
        say(f"taking down the lab {settings.name}")
        _remove(settings)
    left = leaks.find(settings)
    if left:
        raise LabError("left behind: " + "; ".join(left))
    say("down, nothing left")


def kill(settings: Settings, host: Host) -> None:
    """End one host at once, as in a power failure; its disk is lost, too."""
    cgroups.destroy_host(settings, host.name)
    say(f"{host.name} is dead")


def revive(settings: Settings, host: Host) -> None:
    """Boot a killed host afresh: whatever was installed on it must be installed again."""
    if is_alive(settings, host):
        say(f"{host.name} is alive")
        return
    cgroups.destroy_host(settings, host.name)
    _await(settings, host, _spawn(settings, host))


def known(settings: Settings) -> list[Host]:
    """The hosts of the last ``up``, alive or not."""
    try:
        state = json.loads((settings.run / "lab.json").read_text())
    except FileNotFoundError:
        return []
    return [Host(h["index"], h["name"], h["suite"], Path(h["image"])) for h in state["hosts"]]


def is_alive(settings: Settings, host: Host) -> bool:
    """Whether the host's systemd runs and still has its container manager, without which it could not reboot."""
    if not cgroups.is_supervised(settings, host.name):
        return False
    return host.has_kernel or cgroups.init_process(settings, host.name) is not None


def _is_up(settings: Settings, wanted: list[Host]) -> bool:
    """Whether exactly ``wanted`` is up and answers. Raises LabError if other hosts are alive."""
    have = known(settings)
    alive = [host for host in have if is_alive(settings, host)]
    if not alive or not (settings.run / _COMPLETE).exists():
        return False
    if have != wanted:
        now = ", ".join(f"{host.name} ({host.suite})" for host in alive)
        raise LabError(f"another lab is up ({now}), or its images are outdated: run 'lab down' first")
    with ThreadPoolExecutor(len(wanted)) as pool:
        return len(alive) == len(have) and all(pool.map(lambda host: _answers(settings, host, ["true"]), wanted))


def _start(settings: Settings, hosts: list[Host]) -> None:
    say(f"booting {', '.join(f'{host.name} ({host.suite})' for host in hosts)}")
    (settings.run / "mnt").mkdir(parents=True)
    access.write(settings, hosts)
    state = {"hosts": [{**vars(host), "image": str(host.image)} for host in hosts]}
    (settings.run / "lab.json").write_text(json.dumps(state))
    limits.make_room(len(hosts))
    network.create(settings, hosts)
    supervisors = [_spawn(settings, host) for host in hosts]
    with ThreadPoolExecutor(len(hosts)) as pool:
        for future in [pool.submit(_await, settings, *pair) for pair in zip(hosts, supervisors, strict=True)]:
            future.result()
    (settings.run / _COMPLETE).touch()


def _spawn(settings: Settings, host: Host) -> subprocess.Popen[bytes]:
    """Start a host's supervisor in its own session, so that it outlives this command and its terminal."""
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "nspawnlab.boot"]
    with (settings.run / f"{host.name}.log").open("wb") as log:
        return subprocess.Popen(
            [*argv, host.name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "OFFHEAP_LAB_NAME": settings.name, "OFFHEAP_LAB_DIR": str(settings.directory)},
        )


def _await(settings: Settings, host: Host, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait until the host accepts SSH commands and has finished booting; raises LabError if it does not."""
    begin = time.monotonic()
    timeout = KERNEL_TIMEOUT if host.has_kernel else BOOT_TIMEOUT
    while not _answers(settings, host, ["true"]):
        if supervisor.poll() is not None:
            raise LabError(f"{host.name} died: {_log_tail(settings, host)}")
        if time.monotonic() - begin > timeout:
            raise LabError(f"{host.name} takes no SSH command after {timeout:.0f} s: {_log_tail(settings, host)}")
        time.sleep(0.05)
    question = "systemctl is-system-running --wait; systemctl --failed --plain --no-legend"
    answer = subprocess.run(
        access.ssh_command(settings, host.name, [question]),
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        check=False,
    ).stdout
    if not answer.startswith("running"):
        raise LabError(f"{host.name} booted, but not cleanly: {' | '.join(answer.splitlines())}")
    say(f"{host.name} ({host.suite}) is up after {time.monotonic() - begin:.1f} s")


def _answers(settings: Settings, host: Host, command: list[str]) -> bool:
    argv = access.ssh_command(settings, host.name, command)
    argv[1:1] = ["-o", "ConnectTimeout=2", "-o", "BatchMode=yes"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=15, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _log_tail(settings: Settings, host: Host) -> str:
    log = settings.run / f"{host.name}.log"
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-5:]) + f" (see {log})"


def _remove(settings: Settings) -> None:
    cgroups.destroy(settings)
    for pid in leaks.stray_processes(settings):
        os.kill(pid, 9)
    network.destroy(settings)
    if settings.run.exists():
        shutil.rmtree(settings.run)
