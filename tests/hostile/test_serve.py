# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Pages of other sites that ask the console's server for a report."""

from __future__ import annotations

import functools
import http.client
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.console.serve import ReportHandler


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8800", "127.0.0.1.evil.example", "", "localhost.:1"])
def test_another_name(tmp_path: Path, host: str) -> None:
    (tmp_path / "report.txt").write_text("ours")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(ReportHandler, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        assert _asked(port, host) == (421, False)
        assert _asked(port, f"127.0.0.1:{port}") == _asked(port, "localhost") == (200, True)
        server.shutdown()


def _asked(port: int, host: str) -> tuple[int, bool]:
    """The status, and whether the report came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/report.txt", headers={"Host": host})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, b"ours" in content
