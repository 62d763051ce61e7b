# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Serves reports to browsers of one user of this machine, under its own name only."""

from __future__ import annotations

import functools
import secrets
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

#: what is opened first (report/files.py writes it)
PAGE = "report.html"


class ReportHandler(SimpleHTTPRequestHandler):
    """Files of a directory, to who knows the ``token`` with which every path begins.

    Other users of the machine can connect, but do not see our terminal. A page of another site that has its name point
    here (DNS rebinding) gets nothing either.
    """

    def __init__(self, *arguments: object, token: str, **options: object) -> None:
        self._root = f"/{token}/"
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def parse_request(self) -> bool:
        """False where the request has been answered already."""
        if not super().parse_request():
            return False
        name, _colon, _port = self.headers.get("Host", "").rpartition(":")
        if (name or self.headers.get("Host", "")) not in ("127.0.0.1", "localhost"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "only 127.0.0.1 and localhost are served")
            return False
        start = self.path[: len(self._root)]
        if not secrets.compare_digest(start.encode("utf-8", "replace"), self._root.encode()):
            self.send_error(HTTPStatus.NOT_FOUND, "use the whole address that fab serve has printed")
            return False
        return True

    def translate_path(self, path: str) -> str:
        """The file; the path in an address stays whole, since redirects and listings repeat it."""
        return super().translate_path(path[len(self._root) - 1 :])

    def end_headers(self) -> None:
        """The address is a secret: no page that a report links to may learn it."""
        self.send_header("Referrer-Policy", "no-referrer")
        super().end_headers()


def report_server(directory: str, port: int) -> tuple[ThreadingHTTPServer, str]:
    """A server on 127.0.0.1, with a new token, and the address under which it serves. Raises OSError."""
    token = secrets.token_urlsafe(16)
    server = ThreadingHTTPServer(
        ("127.0.0.1", port), functools.partial(ReportHandler, directory=directory, token=token)
    )
    return server, f"http://127.0.0.1:{server.server_address[1]}/{token}/"
