# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Serves reports to browsers of this machine, under its own name only."""

from __future__ import annotations

from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler


class ReportHandler(SimpleHTTPRequestHandler):
    """Files of a directory. A page of another site that has its name point here (DNS rebinding) gets none."""

    def parse_request(self) -> bool:
        """False where the request has been answered already."""
        if not super().parse_request():
            return False
        name, _colon, _port = self.headers.get("Host", "").rpartition(":")
        if (name or self.headers.get("Host", "")) in ("127.0.0.1", "localhost"):
            return True
        self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "only 127.0.0.1 and localhost are served")
        return False
