# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service with secrets on its command line is profiled by root; an account that may become the service's user, and
nobody else, collects and looks. It gets no shell of root's, and no secret gets anywhere.

The tests stand in the order of the hunt and each needs those before it.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.tests.hostile.test_planted_secrets import LINES, SECRETS, words_of
from ansible_collections.offheap.profiler.tests.integration import small_services
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult
from ansible_collections.offheap.profiler.tests.unit.plugins.action.test_leak_push import Pyroscope

pytestmark = pytest.mark.in_order

RunPlaybook = Callable[..., PlaybookResult]
UNIT, SPOOL, ARCHIVE = "secretive", "/var/lib/offheap/secretive.service", "restricted-archive"
SECRET_FILE = "/etc/secretive.env"
SUDOERS = "monitor ALL=(app) NOPASSWD: ALL"
AS_MONITOR = {"ansible_user": "monitor", "ansible_become_user": "app"}


def _quoted(word: str) -> str:
    """A word as systemd's ExecStart= takes it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


@pytest.fixture(scope="module")
def app1(host: Callable[[str], LabHost]) -> LabHost:
    """The one that builds the library, so that no other has to be in the play."""
    return host("app1")


@pytest.fixture(scope="module")
def secretive(app1: LabHost) -> Iterator[str]:
    """A service of the user app whose command line has the words of every line with a secret."""
    words = [word for number, line in enumerate(LINES) for word in words_of(line, SECRETS[number % len(SECRETS)])]
    command = f"/usr/bin/python3 /usr/local/bin/small-service.py {' '.join(map(_quoted, words))}"
    lines = f"ExecStart=\nExecStart={command}\nUser=app\nEnvironment=API_KEY=geheim\nEnvironmentFile={SECRET_FILE}"
    app1.run(f"echo DB_PASSWORD=geheim > {SECRET_FILE}; chmod 600 {SECRET_FILE}")
    with small_services.installed(app1, UNIT, lines=lines) as unit:
        yield unit
    app1.run(f"rm -rf {SECRET_FILE} {SPOOL}", check=False)


@pytest.fixture(scope="module")
def account(app1: LabHost) -> Iterator[str]:
    """The account ``monitor``, which logs in with deploy's key."""
    app1.run(
        "useradd -m -s /bin/bash monitor; mkdir -p ~monitor/.ssh; cp ~deploy/.ssh/authorized_keys ~monitor/.ssh/;"
        f" chown -R monitor: ~monitor/.ssh; echo '{SUDOERS}' > /etc/sudoers.d/monitor"
    )
    yield "monitor"
    app1.run("rm -f /etc/sudoers.d/monitor; pkill -KILL -u monitor; userdel -r monitor", check=False)


@pytest.fixture(scope="module")
def enabled(secretive: str, playbook: RunPlaybook, library: dict[str, Any]) -> Iterator[PlaybookResult]:
    variables = {
        **library,
        "offheap_units": [UNIT],
        "profiled_service_healthy_seconds": 3,
        "profiled_service_malloc_conf": {"lg_prof_sample": 16},
        "profiled_service_dump_seconds": 4,
        "profiled_service_agent_settings": {"start_delay": 1},
    }
    yield playbook("enable_profiling.yml", "-vvv", limit="app1", extra_vars=variables, diff=True).check()
    ends = {"offheap_units": [UNIT], "rollback_discard": True}
    playbook("rollback.yml", limit="app1", extra_vars=ends).check()


def _told(result: PlaybookResult) -> str:
    """All that a run said, without what ansible-playbook itself was told."""
    assert result.check().stdout
    return result.stdout.lower()


def test_the_secrets_are_there(enabled: PlaybookResult, app1: LabHost) -> None:
    pid = app1.main_pid(UNIT)
    assert app1.run(f"tr '\\0' '\\n' < /proc/{pid}/cmdline").stdout.lower().count("geheim") >= len(LINES)
    assert app1.run(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout.count("geheim") == 2


def test_enabling_tells_none(enabled: PlaybookResult) -> None:
    assert "geheim" not in _told(enabled)


def test_the_account_collects(
    enabled: PlaybookResult, account: str, app1: LabHost, playbook: RunPlaybook, controller: Controller
) -> None:
    def waiting() -> int:
        return int(app1.run(f"ls {SPOOL}/*.heap | wc -l", check=False).stdout)

    wait_for(lambda: waiting() >= 3, "three dumps")
    variables = {**AS_MONITOR, "offheap_archive": ARCHIVE}
    collected = playbook("collect_profiles.yml", "-vvv", limit="app1", extra_vars=variables)
    assert "geheim" not in _told(collected)
    (brought,) = [task.result for task in collected.of("app1") if "captures" in task.result]
    assert len(brought["captures"]) >= 3 and brought["images"]
    assert int(app1.run(f"ls {SPOOL}/collected/*.heap | wc -l").stdout) >= 3, "they are marked"
    files = [path for path in (controller.directory / ARCHIVE).rglob("*") if path.is_file()]
    assert not [path for path in files if "images" not in path.parts and b"geheim" in path.read_bytes().lower()]


def test_the_account_looks_at_the_memory(enabled: PlaybookResult, account: str, playbook: RunPlaybook) -> None:
    variables = {**AS_MONITOR, "offheap_units": [UNIT], "offheap_triage": "restricted-triage", "triage_watch": "5s"}
    looked = playbook("triage.yml", "-vvv", limit="app1", extra_vars=variables)
    assert "geheim" not in _told(looked)
    (verdicts,) = [task.result["verdicts"] for task in looked.tasks if "verdicts" in task.result]
    assert [verdict["unit"] for verdict in verdicts] == [f"{UNIT}.service"]


def test_report_and_push_tell_none(
    enabled: PlaybookResult, account: str, controller: Controller, playbook: RunPlaybook, tmp_path: Path
) -> None:
    with Pyroscope() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        (tmp_path / "push.yml").write_text(
            "- hosts: localhost\n  connection: local\n  gather_facts: false\n  tasks:\n"
            f"    - offheap.profiler.leak_push: {{archive: {ARCHIVE}, pyroscope_url: '{server.url}',"
            f" textfile: {tmp_path}/offheap.prom}}\n"
        )
        report = {"offheap_archive": ARCHIVE, "offheap_report": str(tmp_path / "report"), "offheap_report_min_span": 1}
        told = _told(playbook("report_leaks.yml", "-vvv", extra_vars=report))
        told += _told(playbook(tmp_path / "push.yml", "-vvv"))
        server.shutdown()
        thread.join()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"secretive" in written and len(server.requests) >= 3
    assert "geheim" not in told + repr([(query, form) for query, _headers, form in server.requests]).lower()
    assert b"geheim" not in written.lower()


PATHS_TO_ROOT = [
    "sudo -n id -u",
    "sudo -n -u root sh -c 'id -u'",
    "sudo -n -i",
    "sudo -n -u deploy sudo -n id -u",
    "sudo -n -u '#0' id -u",
    "sudo -n -u app sudo -n id -u",
    "sudo -n -u app -g root cat /etc/shadow",
    "sudo -n -u app setpriv --reuid 0 id -u",
    "sudo -n -u app nsenter -t 1 -m id -u",
    "sudo -n -u app cat /etc/shadow",
    f"sudo -n -u app cat {SECRET_FILE}",
    f"sudo -n -u app touch /etc/systemd/system/{UNIT}.service.d/shell.conf",
    "sudo -n -u app cp /bin/sh /opt/offheap/agent/",
    f"sudo -n -u app mv /var/lib/offheap/{UNIT}.service /var/lib/offheap/other.service",
    "systemctl --no-ask-password restart ticker",
    "systemd-run --no-ask-password --wait id -u",
    f"cat {SPOOL}/collected/*",
    "su -c 'id -u' root",
]


@pytest.mark.parametrize("command", PATHS_TO_ROOT)
def test_the_account_gets_no_more(enabled: PlaybookResult, account: str, app1: LabHost, command: str) -> None:
    argv = [*app1._ssh, "-l", account, app1.name, command]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and done.stdout.strip() != "0", f"{done.stdout}{done.stderr}"


def test_the_account_can_become_the_service_s_user(account: str, app1: LabHost) -> None:
    """Else the refusals above say nothing."""
    argv = [*app1._ssh, "-l", account, app1.name, "sudo -n -u app id -un"]
    assert subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout == "app\n"
