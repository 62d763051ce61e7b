# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Pushing by OTLP to a real HTTP server: each capture once, and what the collector refuses is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.offheap.profiler.plugins.action import leak_push
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives


class Collector(ThreadingHTTPServer):
    """Keeps (path, headers, body) of each request, and gives its ``answer``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, Any, bytes]] = []
        self.status, self.answer = 200, b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.chdir(tmp_path)
    return leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=3)


def _run(**arguments: Any) -> dict[str, Any]:
    return run_action(leak_push, False, archive="archive", **arguments)


def _refusal(rejected: int) -> bytes:
    answer = profile_proto.message_class("OtlpResponse", "string")()
    answer.partial_success.rejected = rejected
    answer.partial_success.error = "too \x1b[2Jold"
    return bytes(answer.SerializeToString())


def test_every_capture_arrives_once(archive: Archive, collector: Collector) -> None:
    headers = {"Authorization": "Bearer 123"}
    assert _run(otlp_url=collector.url + "/", otlp_headers=headers)["pushed"] == 6
    assert not _run(otlp_url=collector.url)["changed"]
    (path, told, body), *others = collector.requests
    assert len(others) == 5 and path == "/v1development/profiles"
    assert told["Content-Type"] == "application/x-protobuf" and told["Authorization"] == "Bearer 123"
    assert "X-Scope-OrgID" not in told
    request = profile_proto.message_class("OtlpRequest", "string").FromString(body)
    resource = {one.key: one.value.text for one in request.resource_profiles[0].resource.attributes}
    newest = archive.captures(host="app1")[-1]
    assert resource == {
        "service.name": "frontend",
        "service.instance.id": f"app1 {newest.process}",
        "host.name": "app1",
        "process.executable.path": "/usr/bin/java",
        "systemd.unit": "frontend.service",
    }


def test_one_server_of_both_kinds_gets_both(archive: Archive, collector: Collector) -> None:
    assert _run(otlp_url=collector.url, pyroscope_url=collector.url)["pushed"] == 12
    assert {path.split("?")[0] for path, _headers, _body in collector.requests} == {
        "/ingest",
        "/v1development/profiles",
    }


def test_what_is_refused_is_told_and_sent_again(archive: Archive, collector: Collector) -> None:
    collector.answer = _refusal(2)
    result = _run(otlp_url=collector.url, hosts=["app1"])
    assert (result["pushed"], result["left"]) == (0, 3)
    assert "has refused 2 of a capture's profiles: too" in result["warnings"][0] and "\x1b" not in result["warnings"][0]
    collector.answer = _refusal(0)
    assert _run(otlp_url=collector.url, hosts=["app1"])["pushed"] == 3


def test_an_answer_of_another_kind_means_that_it_was_taken(archive: Archive, collector: Collector) -> None:
    collector.answer = b"<html>thank you</html>"
    assert _run(otlp_url=collector.url, hosts=["app1"])["pushed"] == 3


def test_a_server_without_such_a_place_fails_the_task(archive: Archive, collector: Collector) -> None:
    collector.status, collector.answer = 404, b"no such page"
    result = _run(otlp_url=collector.url)
    assert result["failed"] and "answered 404" in result["warnings"][0] and result["left"] == 6
    assert len(collector.requests) == 1, "none is tried in vain"
