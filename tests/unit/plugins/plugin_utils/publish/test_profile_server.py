# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Addresses and proxies; what servers answer is tried where profiles are sent and asked for."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.publish.otlp_collector import collector
from ansible_collections.offheap.profiler.plugins.plugin_utils.publish.profile_server import Server, ServerError


class _Answering(BaseHTTPRequestHandler):
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Proxy-Authorization", "")))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(_Answering, "asked", [], raising=False)
    server = HTTPServer(("127.0.0.1", 0), _Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("before", "told"), [("http://me:p%40ss@", b"me:p@ss"), ("http://", b""), ("", b"")])
def test_a_proxy_gets_the_name_and_password_of_the_environment(
    proxy: HTTPServer, monkeypatch: pytest.MonkeyPatch, before: str, told: bytes
) -> None:
    monkeypatch.setenv("http_proxy", f"{before}127.0.0.1:{proxy.server_address[1]}")
    assert Server("http://pyroscope.example.org", attempts=1, timeout=30).ask("GET", "/there") == b"ok"
    expected = f"Basic {base64.b64encode(told).decode()}" if told else ""
    assert _Answering.asked == [("http://pyroscope.example.org/there", expected)]


@pytest.mark.parametrize(
    "address", ["https://me:secret@pyroscope.example.org", "grpc://me:secret@collector:4317", "http://me:se/cret@host"]
)
def test_a_password_in_an_address_is_refused_and_not_shown(address: str) -> None:
    """It was never sent, and each message showed it."""
    with pytest.raises(ServerError, match="Authorization") as refused:
        collector(address, {}, 1, 1).check()
    assert "cret" not in str(refused.value)


def test_a_web_page_does_not_mean_that_a_profile_was_taken(proxy: HTTPServer) -> None:
    """As the web interface of a server answers on each path: all profiles were noted as sent, and never were."""
    with pytest.raises(ServerError, match="with a web page") as refused:
        Server(f"http://127.0.0.1:{proxy.server_address[1]}", attempts=1, timeout=30).post("/ingest", {"body": b"x"})
    assert refused.value.hopeless


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "grpc://127.0.0.1:1"])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("Authorization", "Bearer sEcret\n", "the header Authorization has characters that cannot be sent"),
        ("Authorization", "Bearer sEcret\N{EURO SIGN}", "the header Authorization has characters that cannot be sent"),
        ("Bearer sEcret", "", "a header has no name"),
        ("", "sEcret", "a header has no name"),
    ],
)
def test_a_header_that_cannot_be_sent_is_told_without_the_secret(url: str, name: str, value: str, words: str) -> None:
    with pytest.raises(ServerError, match=words) as told:
        collector(url, {name: value}, 1, 1.0).check()
    assert "sEcret" not in str(told.value)


def test_a_header_that_can_be_sent_is_not_refused() -> None:
    collector("http://127.0.0.1:1", {"X-Scope-OrgID": "team a/b", "authorization": "Basic eDp5=="}, 1, 1.0).check()
