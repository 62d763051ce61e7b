# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The operator's console against eight hosts of its own: one dead, one slow, one with another key than it had, one
behind a jump host, one with a password for sudo. What needs a profiled unit is in test_hunt.py."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.tests.integration.conftest import NAME
from ansible_collections.offheap.profiler.tests.integration.hosts import Lab, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import PROGRAMS, Controller
from ansible_collections.offheap.profiler.tests.integration.spools import SPOOL, UNIT, make_spool, put

Fab = Callable[..., subprocess.CompletedProcess[str]]
SECRET = "offen und ehrlich"
SLOW_PYTHON = "/usr/local/bin/slow-python"


@pytest.fixture(scope="module")
def eight(booted_lab: Lab, dumps: list[bytes]) -> Iterator[Lab]:
    """Eight hosts, each with dumps in a spool; app6 wants a password for sudo, app8 is dead."""
    lab = Lab(f"{NAME}8"[-9:])
    lab.down()
    try:
        lab.command("up", "--hosts", "8")
        for name in lab.hosts():
            host = lab.host(name)
            make_spool(host)
            for sequence, content in enumerate(dumps):
                put(host, f"jeprof.99999.{sequence}.i{sequence}.heap", content)
        lab.host("app4").run(
            "printf '#!/bin/sh\\nsleep 3\\nexec /usr/bin/python3 \"$@\"\\n' >/usr/local/bin/slow-python"
        )
        lab.host("app4").run("chmod 755 /usr/local/bin/slow-python")
        sudo = lab.host("app6")
        sudo.run(
            f"echo {shlex.quote(f'deploy:{SECRET}')} | chpasswd; echo 'deploy ALL=(ALL) ALL' >/etc/sudoers.d/deploy"
        )
        lab.host("app8").kill()
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="module")
def inventory(eight: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the lab's, under names that say what each host is; a vault has the password."""
    directory = tmp_path_factory.mktemp("inventory")
    run = eight.inventory.parent
    keys = (run / "known_hosts").read_text().splitlines()
    names = {name: keys[number].split()[0].split(",")[0] for number, name in enumerate(eight.hosts())}
    # The key of app5 is another one than known_hosts has.
    fifth = keys[4].split()
    keys[4] = " ".join([fifth[0], *keys[3].split()[1:]])
    (directory / "known_hosts").write_text("\n".join(keys) + "\n")
    text = (run / "ssh_config").read_text().replace(str(run / "known_hosts"), str(directory / "known_hosts"))
    # app7 is reached through app1 only.
    (directory / "ssh_config").write_text(f"Host {names['app7']}\n  ProxyJump app1\n{text}")
    wanted = {"one": "app1", "two": "app2", "three": "app3", "slow": "app4", "changed": "app5", "sudo": "app6"}
    hosts: dict[str, dict[str, Any]] = {
        name: {"ansible_host": names[host]} for name, host in {**wanted, "behind": "app7", "dead": "app8"}.items()
    }
    hosts["slow"]["ansible_python_interpreter"] = SLOW_PYTHON
    (directory / "vault-password").write_text("fledermaus\n")
    encrypted = subprocess.run(
        [f"{PROGRAMS}/ansible-vault", "encrypt_string", "--vault-password-file", "vault-password", SECRET],
        cwd=directory,
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    hosts["sudo"]["ansible_become_password"] = "{{ the_password }}"
    shared = {"ansible_ssh_common_args": f"-F {directory}/ssh_config"}
    document = json.dumps({"fleet": {"hosts": hosts, "vars": shared}})
    (directory / "hosts.yml").write_text(document)
    (directory / "group_vars").mkdir()
    (directory / "group_vars" / "fleet.yml").write_text(f"the_password: {encrypted}")
    return directory / "hosts.yml"


@pytest.fixture
def fab(collection: Path, controller: Controller, inventory: Path, tmp_path: Path) -> Fab:
    """Runs a command of the console in a directory of its own."""

    def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"{PROGRAMS}/fab", "-r", str(collection), *arguments],
            cwd=tmp_path,
            env=environment(controller, inventory),
            stdin=subprocess.DEVNULL,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    return run


def environment(controller: Controller, inventory: Path) -> dict[str, str]:
    password = str(inventory.with_name("vault-password"))
    return {**controller.environment, "ANSIBLE_VAULT_PASSWORD_FILE": password, "COLUMNS": "80"}


def test_a_fleet_with_troubles_is_collected_but_for_those(
    fab: Fab, inventory: Path, eight: Lab, dumps: list[bytes], tmp_path: Path
) -> None:
    done = fab("-i", str(inventory), "collect", "--json")
    assert done.returncode == 1
    brought = {entry["host"]: len(entry["captures"]) for entry in json.loads(done.stdout)}
    assert brought == dict.fromkeys(("behind", "one", "slow", "sudo", "three", "two"), len(dumps))
    archive = Archive.open(tmp_path / "offheap" / "archive")
    captures = archive.captures()
    assert [capture.host for capture in captures] == [host for host in sorted(brought) for _dump in dumps]
    assert list((archive.root / ".incoming").iterdir()) == []
    said = done.stderr
    assert "changed: the host key of " in said and "has CHANGED" in said and "ssh-keygen -R" in said
    assert "dead: " in said and "2 of 8 hosts failed" in said
    for name in ("app1", "app4", "app7"):
        assert eight.host(name).run(f"ls {SPOOL}").stdout.split() == ["collected"]
        assert "offheap" not in eight.host(name).run("ls -A /home/deploy /root /tmp").stdout
    assert len(eight.host("app5").run(f"ls {SPOOL}").stdout.split()) == len(dumps), "nothing was asked of it"
    again = fab("collect", "--inventory", str(inventory), "--limit", "one,two", "--unit", "collecttest")
    assert again.returncode == 0
    assert [line.split() for line in again.stdout.splitlines()[1:]] == [
        ["one", "nothing", "new", "0", "0", "B"],
        ["two", "nothing", "new", "0", "0", "B"],
    ]


def test_what_runs(fab: Fab, inventory: Path) -> None:
    done = fab("units", "-i", str(inventory), "-l", "one,behind", "--json")
    assert done.returncode == 0, done.stderr
    found = {(unit["host"], unit["unit"]): unit for unit in json.loads(done.stdout)}
    for host in ("one", "behind"):
        assert found[host, "ssh.service"]["rss"] > 1 << 20
        assert found[host, "ssh.service"]["allocator"] == "libc" and not found[host, "ssh.service"]["profiled"]
    table = fab("units", "-i", str(inventory), "-l", "one")
    assert "ssh.service" in table.stdout and "\x1b" not in table.stdout, "colour is for terminals"


def test_a_key_never_seen_is_refused_until_it_is_accepted(fab: Fab, inventory: Path, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    config = inventory.with_name("ssh_config").read_text()
    theirs = str(inventory.with_name("known_hosts"))
    (tmp_path / "ssh_config").write_text(config.replace(theirs, str(known)))
    variables = {"ansible_ssh_common_args": f"-F {tmp_path}/ssh_config"}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"app2": variables}}}))
    refused = fab("units", "-i", "hosts.yml", "--json")
    assert refused.returncode == 1 and "--accept-new" in refused.stderr and json.loads(refused.stdout) == []
    assert not known.exists()
    assert fab("units", "-i", "hosts.yml", "--json", "--accept-new").returncode == 0
    assert len(known.read_text().splitlines()) == 1
    assert fab("units", "-i", "hosts.yml", "--json").returncode == 0


def test_a_wrong_password_for_sudo(fab: Fab, inventory: Path, tmp_path: Path) -> None:
    document = json.loads(inventory.read_text())
    hosts = document["fleet"]["hosts"]
    document["fleet"]["hosts"] = {
        "wrong": {**hosts["sudo"], "ansible_become_password": "falsch"},
        "none": {"ansible_host": hosts["sudo"]["ansible_host"]},
    }
    (tmp_path / "hosts.yml").write_text(json.dumps(document))
    done = fab("units", "-i", "hosts.yml")
    assert done.returncode == 1
    assert "wrong: sudo rejected the password" in done.stderr
    assert "none: sudo wants a password and there is none" in done.stderr and "ansible_become_password" in done.stderr


def test_an_interrupt_leaves_nothing(
    fab: Fab, collection: Path, controller: Controller, inventory: Path, eight: Lab, tmp_path: Path
) -> None:
    """On slow, whose Python takes three seconds to begin."""
    process = subprocess.Popen(
        # What was started in the background of a script inherits that interrupts are ignored.
        [
            "env",
            "--default-signal=INT",
            f"{PROGRAMS}/fab",
            "-r",
            str(collection),
            "-i",
            str(inventory),
            "collect",
            "--limit",
            "slow",
        ],
        cwd=tmp_path,
        env=environment(controller, inventory),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    running = "pgrep -f 'slow[-]python'"  # which is not what pgrep itself is called by
    wait_for(lambda: eight.host("app4").run(running, check=False).stdout, "the host's Python was started", interval=0.1)
    os.killpg(process.pid, 2)
    assert process.wait(20) != 0
    wait_for(lambda: not eight.host("app4").run("pgrep -f 'offheap[-]ready'", check=False).stdout, "nothing runs there")
    assert list((tmp_path / "offheap" / "archive" / ".incoming").glob("*")) == []


def test_watch_in_a_terminal(collection: Path, controller: Controller, inventory: Path, tmp_path: Path) -> None:
    """Typed in tmux, and read from its screen."""
    server = ["tmux", "-L", f"offheap-{os.getpid()}", "-f", "/dev/null"]
    env = {**environment(controller, inventory), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    line = [f"{PROGRAMS}/fab", "-r", str(collection), "-i", str(inventory), "watch", "-l", "one,two", "--unit", "ssh"]

    def screen() -> str:
        shown = subprocess.run([*server, "capture-pane", "-p"], env=env, text=True, capture_output=True, check=False)
        return shown.stdout

    try:
        start = [*server, "new-session", "-d", "-x", "80", "-y", "20", "sh"]
        subprocess.run(start, env=env, cwd=tmp_path, check=True)
        subprocess.run([*server, "send-keys", f"{shlex.join(line)}; echo status=$?", "Enter"], env=env, check=True)
        hosts = {"one", "two"}

        def told() -> set[str]:
            rows = [row for row in screen().splitlines() if "MiB" in row and "/h" in row]
            return {row.split()[0] for row in rows}

        wait_for(lambda: told() == hosts, "memory and growth per hour of both hosts are on the screen")
        subprocess.run([*server, "send-keys", "C-c"], env=env, check=True)
        wait_for(lambda: re.search(r"^status=0$", screen(), re.MULTILINE), "it ended well")
    finally:
        subprocess.run([*server, "kill-server"], env=env, check=False, capture_output=True)


def test_this_machine_needs_no_ssh(fab: Fab) -> None:
    done = fab("-H", "localhost", "units")
    if Path("/run/systemd/system").exists():
        assert done.returncode == 0 and ".service" in done.stdout
    else:
        assert done.returncode == 1 and "localhost: this host does not run systemd" in done.stderr


def test_unit_of_a_spool(fab: Fab, inventory: Path) -> None:
    done = fab("collect", "-i", str(inventory), "-l", "one", "--unit", "nosuch")
    assert done.returncode == 0 and "nosuch.service has no spool" in done.stderr
    assert UNIT not in done.stdout
