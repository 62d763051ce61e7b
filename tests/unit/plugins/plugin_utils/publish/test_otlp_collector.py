# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Pushing by OTLP to real servers of HTTP and gRPC: each capture once, and what the collector refuses is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2, profiles_service_pb2_grpc

from ansible_collections.offheap.profiler.plugins.action import heap_analyze, heap_import, leak_push, leak_report
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


def test_what_is_as_it_was_is_another_profile(archive: Archive, collector: Collector, tmp_path: Path) -> None:
    content = leaky_archives.dump_text(1, 1)
    for number in (98, 99):
        time = leaky_archives.START + number
        leaky_archives.add(archive, tmp_path / "scratch", content, host="app9", sequence=number, time=time)
    assert _run(otlp_url=collector.url, hosts=["app9"])["pushed"] == 2
    message = profile_proto.message_class("OtlpRequest", "string")
    sent = [message.FromString(body) for _path, _headers, body in collector.requests]
    ids = [one.profile_id for request in sent for one in request.resource_profiles[0].scope_profiles[0].profiles]
    assert len(ids) == len(set(ids)) == 8


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


class Service(profiles_service_pb2_grpc.ProfilesServiceServicer):
    """Of OpenTelemetry's own package: keeps each request with its metadata. ``busy`` times it takes none."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.busy, self.code = 0, grpc.StatusCode.UNAVAILABLE
        self.rejected = 0

    def Export(self, request: Any, context: Any) -> Any:
        if self.busy:
            self.busy -= 1
            context.abort(self.code, "too \x1b[2Jmuch")
        self.requests.append((dict(context.invocation_metadata()), request))
        partly = profiles_service_pb2.ExportProfilesPartialSuccess(
            rejected_profiles=self.rejected, error_message="too old"
        )
        return profiles_service_pb2.ExportProfilesServiceResponse(partial_success=partly)


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    """One that runs, and its address."""
    found = Service()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        profiles_service_pb2_grpc.add_ProfilesServiceServicer_to_server(found, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield found, f"grpc://127.0.0.1:{port}"
        server.stop(None).wait()


def test_over_grpc_arrives_what_arrives_over_http(
    archive: Archive, collector: Collector, service: tuple[Service, str]
) -> None:
    found, address = service
    assert _run(otlp_url=address, otlp_headers={"Authorization": "Bearer 123"})["pushed"] == 6
    assert not _run(otlp_url=address)["changed"]
    assert _run(otlp_url=collector.url)["pushed"] == 6
    told, _request = found.requests[0]
    assert told["authorization"] == "Bearer 123"
    kind = profiles_service_pb2.ExportProfilesServiceRequest
    assert [request for _told, request in found.requests] == [
        kind.FromString(body) for *_head, body in collector.requests
    ]


def test_what_a_service_took_is_judged_as_the_archive_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: tuple[Service, str]
) -> None:
    """Each profile has the total that heap_analyze gives, and read back they lead to the same verdicts."""
    monkeypatch.chdir(tmp_path)
    archive = leaky_archives.fill(tmp_path / "archive", tmp_path / "scratch")
    found, address = service
    assert _run(otlp_url=address)["pushed"] == 24
    taken: dict[str, list[Path]] = {}
    for number, (_told, request) in enumerate(found.requests):
        (host,) = {
            one.value.string_value for one in request.resource_profiles[0].resource.attributes if one.key == "host.name"
        }
        taken.setdefault(host, []).append(tmp_path / f"{number:02}.otlp")
        taken[host][-1].write_bytes(request.SerializeToString())
    for host, files in taken.items():
        for file, capture in zip(files, archive.captures(host=host)[::-1], strict=True):
            sent = run_action(heap_analyze, False, src=str(file))
            kept = run_action(heap_analyze, False, src=str(capture.dump))
            assert sent["total"] == pytest.approx(kept["total"], abs=1), file
        said: dict[str, Any] = {
            "archive": "back",
            "unit": "frontend",
            "host": host,
            "process": 12,
            "source_interval": "512KiB",
        }
        run_action(heap_import, False, src=[str(file) for file in files], **said)
    back, own = (
        {one["host"]: one for one in run_action(leak_report, False, archive=name, dest=name + "-report")["reports"]}
        for name in ("back", "archive")
    )
    for host, verdict in (("app1", "leak"), ("app2", "no-leak")):
        assert back[host]["verdict"] == own[host]["verdict"] == verdict
        assert back[host]["path"] == own[host]["path"]
        assert back[host]["growth_bytes_per_day"] == pytest.approx(own[host]["growth_bytes_per_day"], rel=0.001)


def test_grpc_tries_again_while_nobody_is_there(archive: Archive, service: tuple[Service, str]) -> None:
    found, address = service
    found.busy = 1
    assert _run(otlp_url=address)["pushed"] == 6 and len(found.requests) == 6


def test_what_grpc_refuses_is_told_and_sent_again(archive: Archive, service: tuple[Service, str]) -> None:
    found, address = service
    found.busy, found.code = 2, grpc.StatusCode.INVALID_ARGUMENT
    result = _run(otlp_url=address, hosts=["app1"])
    assert (result["pushed"], result["left"]) == (1, 2)
    assert "answered INVALID_ARGUMENT: too" in result["warnings"][0] and "\x1b" not in result["warnings"][0]
    found.rejected = 2
    assert "has refused 2 of a capture's profiles: too old" in _run(otlp_url=address, hosts=["app1"])["warnings"][0]
    found.rejected = 0
    assert _run(otlp_url=address, hosts=["app1"])["pushed"] == 2


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED])
def test_a_service_that_takes_none_fails_the_task(
    archive: Archive, service: tuple[Service, str], code: grpc.StatusCode
) -> None:
    found, address = service
    found.busy, found.code = 100, code
    result = _run(otlp_url=address)
    assert result["failed"] and f"answered {code.name}" in result["warnings"][0] and result["left"] == 6
    assert found.busy == 99, "none is tried in vain"


def test_no_service_fails_the_task(archive: Archive, service: tuple[Service, str]) -> None:
    result = _run(otlp_url="grpc://127.0.0.1:9", attempts=2)
    assert result["failed"] and "answered UNAVAILABLE" in result["warnings"][0] and result["left"] == 6


@pytest.mark.parametrize(
    "address",
    [
        "grpc://",
        "grpc://collector:4317/v1",
        *(
            f"grpc://{host}"
            for host in ("collector:port", "collector:", "collector:0", "collector:65536", "[::1", ":1")
        ),
    ],
)
def test_no_address_of_a_service(archive: Archive, address: str) -> None:
    result = _run(otlp_url=address)
    assert result["failed"] and "is no collector's address" in result["warnings"][0]


@pytest.mark.parametrize("address", ["http://", "http://collector:port", "http://[::1", "ftp://collector"])
def test_no_address_of_a_server(archive: Archive, address: str) -> None:
    result = _run(otlp_url=address)
    assert result["failed"] and "is no server's address" in result["warnings"][0]
