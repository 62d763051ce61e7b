# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service begins to leak; Prometheus fires, Alertmanager tells ansible-rulebook, and a report names the path."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.offheap.profiler.tests.integration import small_services
from ansible_collections.offheap.profiler.tests.integration.hosts import LabHost, wait_for
from ansible_collections.offheap.profiler.tests.integration.playbooks import Controller, PlaybookResult
from ansible_collections.offheap.profiler.tests.unit.extensions.test_rulebook import free_port

RunPlaybook = Callable[..., PlaybookResult]
UNIT, TOKEN = "grower", "of-alertmanager"
# It allocates no more than it needs until somebody says so.
WAITS = "while not os.path.exists('/run/begin-to-leak'): time.sleep(0.2)"


@contextlib.contextmanager
def exporter(host: LabHost) -> Iterator[int]:
    """The port of what tells Prometheus the resident memory of the unit, as the exporters of teams do."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            pages = host.run(f"cut -d' ' -f2 /proc/{host.main_pid(UNIT)}/statm").stdout
            text = f'unit_resident_bytes{{unit="{UNIT}.service",host="app1"}} {int(pages) * 4096}\n'
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def running(controller: Controller, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    log = controller.logs / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=controller.directory, env=controller.environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(timeout=60)


def settings(directory: Path, ports: dict[str, int]) -> None:
    """What a team has set: an alert on growth, and where it goes."""
    grows = {
        "alert": "MemoryGrows",
        "expr": "deriv(unit_resident_bytes[20s]) > 200e3",
        "labels": {"severity": "warning"},
    }
    manager = {"static_configs": [{"targets": [f"127.0.0.1:{ports['manager']}"]}]}
    scrape = {
        "job_name": "units",
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{ports['exporter']}"]}],
    }
    hook = {
        "url": f"http://127.0.0.1:{ports['rulebook']}/",
        "send_resolved": False,
        "http_config": {"authorization": {"credentials": TOKEN}},
    }
    for name, content in {
        "rules.yml": {"groups": [{"name": "growth", "rules": [grows]}]},
        "prometheus.yml": {
            "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
            "rule_files": ["rules.yml"],
            "alerting": {"alertmanagers": [manager]},
            "scrape_configs": [scrape],
        },
        "alertmanager.yml": {
            "route": {"receiver": "evidence", "group_by": ["unit", "host"], "group_wait": "1s"},
            "receivers": [{"name": "evidence", "webhook_configs": [hook]}],
        },
        "secrets.yml": {
            "offheap_webhook_port": ports["rulebook"],
            "offheap_webhook_token": TOKEN,
            "offheap_evidence_directory": str(directory / "evidence"),
        },
    }.items():
        (directory / name).write_text(yaml.safe_dump(content))


@pytest.fixture
def enabled(host: Callable[[str], LabHost], playbook: RunPlaybook, library: dict[str, Any]) -> Iterator[LabHost]:
    """The host of the service, which is profiled and does not leak yet."""
    app1 = host("app1")
    variables = {
        **library,
        "offheap_units": [UNIT],
        "profiled_service_healthy_seconds": 3,
        "profiled_service_malloc_conf": {"lg_prof_sample": 16},
        "profiled_service_dump_seconds": 10,
        "profiled_service_agent_settings": {"start_delay": 1},
    }
    # A verdict wants dumps that are a minute apart; taking evidence lasts half of it.
    old = f"find /var/lib/offheap/{UNIT}.service -name '*.heap' -mmin +0.5"
    with small_services.installed(app1, UNIT, begin=WAITS):
        playbook("enable_profiling.yml", limit="app1", extra_vars=variables).check()
        wait_for(lambda: app1.run(old).stdout, "a dump of half a minute ago", timeout=120)
        yield app1
        ends = {"offheap_units": [UNIT], "rollback_discard": True}
        playbook("rollback.yml", limit="app1", extra_vars=ends).check()
    app1.run("rm -f /run/begin-to-leak")


def test_an_alert_ends_in_a_report_that_names_the_path(
    enabled: LabHost, controller: Controller, collection: Path
) -> None:
    directory = controller.directory
    names = ("prometheus", "manager", "rulebook")
    with exporter(enabled) as exporting:
        ports = {"exporter": exporting, **{name: free_port() for name in names}}
        settings(directory, ports)
        own = f"http://127.0.0.1:{ports['prometheus']}/api/v1/alerts"
        commands = {
            "rulebook": ["ansible-rulebook", "-r", "offheap.profiler.alerts", "--vars", "secrets.yml"],
            "manager": ["prometheus-alertmanager", "--config.file=alertmanager.yml", "--cluster.listen-address="],
            "prometheus": ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=prometheus"],
        }
        commands["rulebook"] += ["-i", str(controller.inventory)]
        commands["manager"] += ["--storage.path=manager", f"--web.listen-address=127.0.0.1:{ports['manager']}"]
        commands["prometheus"] += [f"--web.listen-address=127.0.0.1:{ports['prometheus']}"]
        with contextlib.ExitStack() as stack:
            for name, command in commands.items():
                stack.enter_context(running(controller, name, command))
            pid = enabled.main_pid(UNIT)
            enabled.run("touch /run/begin-to-leak")
            wait_for(lambda: "firing" in _asked(own), "the alert fires", timeout=120)
            fired = time.monotonic()
            report = directory / "evidence" / "report" / "report.txt"
            wait_for(report.exists, "a report", timeout=180)
            print(f"\n{time.monotonic() - fired:.0f} s from the alert to the report")
            text = report.read_text()
    assert "PyByteArray" in text and "app1" in text, text
    assert enabled.main_pid(UNIT) == pid, "it was restarted"


def _asked(url: str) -> str:
    # It answers 503 while it starts.
    curl = ["curl", "-sS", "--fail", "--retry", "30", "--retry-connrefused", url]
    done = subprocess.run(curl, capture_output=True, check=True)
    return json.dumps(json.loads(done.stdout)["data"])
