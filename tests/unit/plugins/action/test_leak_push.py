# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Pushing to a real HTTP server, which keeps what arrives and fails as instructed."""

from __future__ import annotations

import email.parser
import gzip
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from ansible_collections.offheap.profiler.plugins.action import leak_push
from ansible_collections.offheap.profiler.plugins.plugin_utils.archive.archive import Archive
from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish import pyroscope
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish.prometheus import METRICS
from ansible_collections.offheap.profiler.tests.unit.fakes.actions import run_action
from ansible_collections.offheap.profiler.tests.unit.strategies import leaky_archives


class Pyroscope(ThreadingHTTPServer):
    """Keeps (query, headers, form) of each request; answers with ``answers`` first, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[dict[str, str], Any, dict[str, bytes]]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Pyroscope

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = urlsplit(self.path)
        assert path.path == "/ingest"
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = email.parser.BytesParser().parsebytes(head + body)
        fields = {}
        for part in form.get_payload():
            assert not isinstance(part, str)
            fields[str(part.get_param("name", header="content-disposition"))] = part.get_payload(decode=True)
        query = {name: values[0] for name, values in parse_qs(path.query).items()}
        self.server.requests.append((query, self.headers, fields))  # type: ignore[arg-type]
        status, headers = self.server.answers.pop(0) if self.server.answers else (200, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"" if status == 200 else b"not now")

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Pyroscope]:
    with Pyroscope() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.chdir(tmp_path)
    return leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch", dumps=6)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that it would have waited."""
    seconds: list[float] = []
    monkeypatch.setattr(urllib3.util.retry, "time", SimpleNamespace(sleep=seconds.append, time=time.time))
    return seconds


def _run(check: bool = False, **arguments: Any) -> dict[str, Any]:
    return run_action(leak_push, check, archive="archive", **arguments)


def test_every_profile_arrives_once(archive: Archive, server: Pyroscope) -> None:
    assert _run(check=True, pyroscope_url=server.url)["left"] == 12
    assert server.requests == []
    first = _run(pyroscope_url=server.url, pyroscope_tenant="platform", max_profiles=5)
    assert (first["changed"], first["pushed"], first["left"]) == (True, 5, 7)
    headers = {"Authorization": "Bearer 123"}
    second = _run(pyroscope_url=server.url + "/", pyroscope_tenant="platform", pyroscope_headers=headers)
    assert (second["pushed"], second["left"]) == (7, 0)
    assert not _run(pyroscope_url=server.url, pyroscope_tenant="platform")["changed"]
    assert len(server.requests) == 12
    sent = {(query["name"], query["from"]) for query, _headers, _form in server.requests}
    assert sent == {(pyroscope.name_of(capture), str(int(capture.time))) for capture in archive.captures()}
    query, first_headers, form = server.requests[0]
    assert query["name"] == "frontend{host=app1,process=12-1a2b3c4d}"
    assert int(query["until"]) > int(query["from"]) and query["format"] == "pprof"
    assert first_headers["X-Scope-OrgID"] == "platform"
    assert server.requests[-1][1]["Authorization"] == "Bearer 123"
    assert json.loads(form["sample_type_config"])["inuse_space"]["units"] == "bytes"
    profile = profile_proto.profile_class()()
    profile.ParseFromString(gzip.decompress(form["profile"]))
    texts = list(profile.string_table)
    assert {"inflate", "deflate", "inuse_space"} <= set(texts)
    column = [texts[kind.type] for kind in profile.sample_type].index("inuse_space")
    newest = archive.captures(host="app1")[-1]
    assert query["from"] == str(int(newest.time)), "the newest first"
    assert sum(sample.value[column] for sample in profile.sample) == pytest.approx((10 + 25 + 31) * 514e3, rel=0.05)


def test_a_busy_server_is_asked_again(archive: Archive, server: Pyroscope, waited: list[float]) -> None:
    server.answers = [(502, {}), (429, {"Retry-After": "7"}), (503, {"Retry-After": "99999"})]
    assert _run(pyroscope_url=server.url, hosts=["app1"], max_profiles=1)["pushed"] == 1
    assert waited == [7, 30]
    assert len(server.requests) == 4


def test_a_broken_server_fails_the_task_and_loses_nothing(
    archive: Archive, server: Pyroscope, waited: list[float]
) -> None:
    server.answers = [(500, {})] * 2
    result = _run(pyroscope_url=server.url, attempts=2, hosts=["app1"])
    assert result["failed"]
    assert "answered 500 Internal Server Error: not now (2 attempts)" in result["warnings"][0]
    assert (result["pushed"], result["left"], len(server.requests)) == (0, 6, 2), "and it is left alone"
    assert _run(pyroscope_url=server.url, hosts=["app1"])["pushed"] == 6, "the next run catches up"


def test_a_profile_that_is_refused_does_not_stop_the_others(archive: Archive, server: Pyroscope) -> None:
    server.answers = [(422, {})]
    result = _run(pyroscope_url=server.url, hosts=["app1"])
    assert (result["pushed"], result["left"]) == (5, 1)
    assert result["warnings"] and result["msg"] == "5 profiles sent, 1 left"
    server.answers = [(401, {})]
    assert _run(pyroscope_url=server.url)["pushed"] == 0, "who is not let in need not try with others"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_neither_followed_nor_counted_as_sent(archive: Archive, server: Pyroscope, status: int) -> None:
    with Pyroscope() as other:  # never answers, so a client that followed would hang
        server.answers = [(status, {"Location": f"{other.url}/ingest"})]
        result = _run(pyroscope_url=server.url, pyroscope_headers={"Authorization": "Bearer 123"}, timeout=2)
        assert (result["changed"], result["pushed"], result["left"]) == (False, 0, 12)
        assert f"redirects to {other.url}/ingest" in result["warnings"][0]
    assert len(server.requests) == 1
    assert _run(pyroscope_url=server.url)["pushed"] == 12, "nothing was taken for sent"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "file:///etc/passwd", "pyroscope.example.org", "http://"])
def test_no_server_is_a_failure_or_a_warning(archive: Archive, waited: list[float], url: str) -> None:
    assert _run(pyroscope_url=url, textfile="offheap.prom")["failed"]
    assert Path("offheap.prom").exists(), "the other part is done"
    assert not _run(pyroscope_url=url, required=False).get("failed")


def test_every_part_that_has_failed_is_told(archive: Archive, waited: list[float]) -> None:
    result = _run(pyroscope_url="http://127.0.0.1:1", otlp_url="http://127.0.0.1:2")
    assert "127.0.0.1:1" in result["msg"] and "127.0.0.1:2" in result["msg"]


def test_names_cannot_leave_their_place(archive: Archive, tmp_path: Path) -> None:
    content = leaky_archives.dump_text(1, 1)
    leaky_archives.add(archive, tmp_path / "scratch", content, host='a",x="\n}', sequence=99, time=1.0)
    (capture,) = [capture for capture in archive.captures() if capture.sequence == 99]
    assert pyroscope.name_of(capture) == "frontend{host=a__x____,process=12-1a2b3c4d}"


def test_prometheus_reads_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    content = leaky_archives.dump_text(1, 1)
    leaky_archives.add(archive, tmp_path / "scratch", content, host='a"\\\n', sequence=99, time=leaky_archives.START)
    limited = leaky_archives.facts(content, "app3", 98, leaky_archives.START)
    archive.add_capture(replace(limited, agent={"memory": {"left": 7 << 20}}), tmp_path / "scratch" / "dump")
    assert _run(check=True, textfile="out/offheap.prom")["changed"]
    assert not (tmp_path / "out").exists()
    assert _run(textfile="out/offheap.prom")["changed"]
    assert not _run(textfile="out/offheap.prom")["changed"]
    values: dict[tuple[str, str], float] = {}
    labels: set[str] = set()
    for family in text_string_to_metric_families((tmp_path / "out" / "offheap.prom").read_text()):
        assert family.type == "gauge"
        for sample in family.samples:
            labels |= set(sample.labels)
            values[sample.name, sample.labels.get("host", sample.labels.get("path", ""))] = sample.value
    assert (values["offheap_leak", "app1"], values["offheap_leak", "app2"]) == (1.0, 0.0)
    assert ("offheap_leak", 'a"\\\n') not in values, "one dump says nothing"
    assert values["offheap_live_bytes", 'a"\\\n'] > 0
    growth, error = (values[f"offheap_growth{part}bytes_per_day", "app1"] for part in ("_", "_error_"))
    assert abs(growth - 720 * 2**20) < error
    assert values["offheap_suspect_growth_bytes_per_day", "app1"] == growth
    assert values["offheap_suspect_hosts", "inflate ← [jit]"] == 1
    assert values["offheap_newest_dump_timestamp_seconds", "app1"] == leaky_archives.START + 3300
    assert values["offheap_memory_left_bytes", "app3"] == 7 << 20
    # Alerts and the dashboard rely on these (tests/unit/extensions).
    assert {name for name, _of in values} == set(METRICS) and labels == {"unit", "host", "path", "suspect"}
