# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Who asks the console's server for a report: pages of other sites, and other users of the machine."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.console.serve import report_server


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[int, str]]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "report.txt").write_text("ours")
    (tmp_path / "served" / "app1").mkdir()
    (tmp_path / "outside.txt").write_text("ours")
    server, address = report_server(str(tmp_path / "served"), 0)
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], address.split("/")[3]
        server.shutdown()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8800", "127.0.0.1.evil.example", "", "localhost.:1"])
def test_another_name(served: tuple[int, str], host: str) -> None:
    port, token = served
    assert _asked(port, f"/{token}/report.txt", host) == (421, False)
    for right in (f"127.0.0.1:{port}", "localhost"):
        assert _asked(port, f"/{token}/report.txt", right) == (200, True)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/report.txt",
        "/{token}",
        "/{token}x/report.txt",
        "/{shorter}/report.txt",
        "/x/../{token}/report.txt",
        "/%{first:02x}{rest}/report.txt",
        "http://127.0.0.1/{token}/report.txt",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_another_user(served: tuple[int, str], path: str, method: str) -> None:
    port, token = served
    wrong = path.format(token=token, shorter=token[:-1], first=ord(token[0]), rest=token[1:])
    assert _asked(port, wrong, method=method) == (404, False)
    assert _asked(port, f"/{token}/report.txt") == (200, True)


@pytest.mark.parametrize("path", ["../outside.txt", "%2e%2e/outside.txt", "//outside.txt", "/../../outside.txt"])
def test_a_file_outside(served: tuple[int, str], path: str) -> None:
    port, token = served
    assert _asked(port, f"/{token}/{path}")[1] is False


def test_a_folder_is_found_under_the_same_address(served: tuple[int, str]) -> None:
    port, token = served
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{token}/app1")
    response = connection.getresponse()
    assert (response.status, response.getheader("Location")) == (301, f"/{token}/app1/")
    connection.close()
    assert _asked(port, f"/{token}/app1/") == (200, False)


def _asked(port: int, path: str, host: str = "localhost", method: str = "GET") -> tuple[int, bool]:
    """The status, and whether a file of ours came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.getheader("Referrer-Policy") == "no-referrer"
    return response.status, b"ours" in content
