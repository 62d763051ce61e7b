# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What ansible-rulebook makes of Alertmanager's messages: one run a unit and host, and none for anything else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RULEBOOK = ROOT / "extensions" / "eda" / "rulebooks" / "alerts.yml"
TOKEN = "of-alertmanager"
#: notes what it was run with, in the place of the playbook of that name
NOTES = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.lineinfile:
        path: "{{ noted }}"
        line: "{{ {'host': offheap_hosts, 'units': offheap_units, 'archive': offheap_archive} | to_json }}"
        create: true
        mode: "0600"
"""

Post = Callable[..., int]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def alert(unit: object = "frontend.service", host: object = "app1", status: str = "firing") -> dict[str, Any]:
    """A message of Alertmanager, of a group by unit and host."""
    labels = {"alertname": "Growth", "unit": unit, "host": host}
    return {
        "version": "4",
        "status": status,
        "groupLabels": {"unit": unit, "host": host},
        "commonLabels": labels,
        "alerts": [{"status": status, "labels": labels}],
    }


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    return tmp_path / "noted"


@pytest.fixture
def post(tmp_path: Path, noted: Path) -> Iterator[Post]:
    """Sends a message to the rulebook that runs; returns the status."""
    collection = tmp_path / "ansible_collections" / "offheap" / "profiler"
    (collection / "playbooks").mkdir(parents=True)
    (collection / "playbooks" / "take_evidence.yml").write_text(NOTES)
    (collection / "extensions" / "eda" / "rulebooks").mkdir(parents=True)
    shutil.copy(RULEBOOK, collection / "extensions" / "eda" / "rulebooks")
    shutil.copy(ROOT / "galaxy.yml", collection)
    port = free_port()
    given = {"offheap_webhook_port": port, "offheap_webhook_token": TOKEN, "offheap_evidence_directory": "/srv"}
    (tmp_path / "vars.yml").write_text(json.dumps(given))
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "noted": str(noted)}
    (tmp_path / "inventory.yml").write_text(json.dumps({"all": {"hosts": {"app1": {}}, "vars": local}}))
    command = ["ansible-rulebook", "-r", "offheap.profiler.alerts", "-i", "inventory.yml", "--vars", "vars.yml"]
    log = tmp_path / "log"
    with log.open("w") as output:
        running = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def send(message: object, token: str = TOKEN) -> int:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(message).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    try:
        for _wait in range(600):
            assert running.poll() is None, log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield send
    finally:
        running.terminate()
        running.wait(timeout=60)


def runs(noted: Path, wanted: int) -> list[dict[str, Any]]:
    """What the playbook was run with, once it was as often as that; and no more a moment later."""
    lines: list[str] = []
    for _wait in range(1200):
        lines = noted.read_text().splitlines() if noted.exists() else []
        if len(lines) >= wanted:
            break
        time.sleep(0.1)
    assert len(lines) == wanted
    return [json.loads(line) for line in lines]


def test_a_storm_makes_one_run_a_unit_and_host_and_nothing_else_makes_any(post: Post, noted: Path) -> None:
    planted = "{{ lookup('pipe', 'touch planted') }}"
    others = [
        alert(unit="resolved", status="resolved"),
        alert(unit=planted),
        alert(host=planted),
        alert(host="all:!app1"),
        alert(unit=["frontend"]),
        {"status": "firing", "groupLabels": {}},
        {"status": "firing"},
    ]
    assert all(post(message) == 200 for message in others)
    assert post(alert(unit="backend.service"), token="another") == 401
    for _alert in range(50):
        assert post(alert()) == post(alert(host="app2")) == 200
    assert post(alert(unit="last@1.service")) == 200
    wanted = [("app1", "frontend.service"), ("app2", "frontend.service"), ("app1", "last@1.service")]
    assert runs(noted, 3) == [{"host": host, "units": [unit], "archive": "/srv/archive"} for host, unit in wanted]
    assert not list(noted.parent.rglob("planted"))
