# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Profiles to Grafana Pyroscope, by its endpoint /ingest with pprof in a form (Pyroscope's server HTTP API).

The server may be away: what could not be sent is told, and sent by the next run, since an archive remembers what a
server has.
"""

from __future__ import annotations

import hashlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path

from ..archive.archive import Archive, Capture
from ..base.errors import ControllerError

_TYPES = {
    "inuse_space": ("bytes", "average"),
    "inuse_objects": ("objects", "average"),
    "alloc_space": ("bytes", "sum"),
    "alloc_objects": ("objects", "sum"),
}
_LONGEST_WAIT = 30.0
_SHOWN = 300


class PushError(ControllerError):
    """A profile could not be sent. The message says why; ``hopeless`` that others would fare no better now."""

    def __init__(self, message: str, hopeless: bool) -> None:
        super().__init__(message)
        self.hopeless = hopeless


@dataclass(frozen=True)
class Server:
    """A Pyroscope. ``url`` is where it is reached, ``tenant`` goes into X-Scope-OrgID, ``headers`` are added.

    ``attempts`` are made for each profile, with 1, 2, 4... seconds between them or what the server asks for, and each
    is given up after ``timeout`` seconds.
    """

    url: str
    tenant: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 4
    timeout: float = 30.0

    def check(self) -> None:
        """Raises PushError when the address is none."""
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PushError(f"{self.url!r} is not the address of a server, such as https://pyroscope.example.org", True)

    @property
    def key(self) -> str:
        """Names what an archive remembers of this server and tenant."""
        return hashlib.sha256(f"{self.url.rstrip('/')} {self.tenant}".encode()).hexdigest()[:16]


def marker(archive: Archive, server: Server, capture: Capture) -> Path:
    """The empty file that says that the server has this capture's profile."""
    return archive.root / "pushed" / server.key / capture.path.relative_to(archive.root / "captures")


def name_of(capture: Capture) -> str:
    """The series: the unit, with host, process and label as Pyroscope's labels."""
    labels = {"host": capture.host, "process": capture.process, "version": capture.facts.label or ""}
    inside = ",".join(f"{key}={_label(value)}" for key, value in labels.items() if value)
    return f"{_label(capture.unit.removesuffix('.service'))}{{{inside}}}"


def push(server: Server, capture: Capture, pprof: bytes, sleep: Callable[[float], None] = time.sleep) -> None:
    """Send the profile (gzipped pprof) of a capture. Raises PushError."""
    moment = int(capture.time)
    query = {"name": name_of(capture), "from": moment, "until": moment + 1, "format": "pprof", "spyName": "offheap"}
    boundary = uuid.uuid4().hex
    request = urllib.request.Request(
        f"{server.url.rstrip('/')}/ingest?{urllib.parse.urlencode(query)}",
        data=_form(boundary, pprof),
        headers={
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "User-Agent": "offheap",
            **({"X-Scope-OrgID": server.tenant} if server.tenant else {}),
            **server.headers,
        },
        method="POST",
    )
    for attempt in range(server.attempts):
        try:
            with urllib.request.build_opener().open(request, timeout=server.timeout) as answer:
                answer.read(_SHOWN)
            return
        except urllib.error.HTTPError as error:
            text = error.read(_SHOWN).decode("utf-8", "replace").strip()
            problem = f"{server.url} answered {error.code} {error.reason}" + (f": {text}" if text else "")
            error.close()
            if error.code != 429 and error.code < 500:
                # 401, 403, 404: no other profile would be taken. 400, 413, 422 say something of this one.
                raise PushError(problem, error.code in (401, 403, 404)) from error
            wait = _retry_after(error.headers.get("Retry-After"), 2.0**attempt)
        except (OSError, ValueError) as error:  # no route, refused, cut off, not HTTP
            problem, wait = f"{server.url} cannot be reached: {error}", 2.0**attempt
        if attempt + 1 < server.attempts:
            sleep(wait)
    raise PushError(f"{problem} ({server.attempts} attempts)", True)


def _form(boundary: str, pprof: bytes) -> bytes:
    config = {
        name: {"units": unit, "aggregation": aggregation, "display-name": name, "sampled": False}
        for name, (unit, aggregation) in _TYPES.items()
    }
    parts = [("profile", "profile.pprof", pprof), ("sample_type_config", "config.json", json.dumps(config).encode())]
    lines = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n'
        f"Content-Type: application/octet-stream\r\n\r\n".encode()
        + content
        + b"\r\n"
        for name, file, content in parts
    ]
    return b"".join(lines) + f"--{boundary}--\r\n".encode()


def _label(text: str) -> str:
    """A text as Pyroscope's names and label values may be."""
    return "".join(character if character.isalnum() or character in "._-:/@" else "_" for character in text)


def _retry_after(value: str | None, otherwise: float) -> float:
    """Seconds that a server asks to wait, within reason."""
    try:
        seconds = float(value) if value and value.strip().isdigit() else None
        if seconds is None and value:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
    except ValueError:
        seconds = None
    return min(max(otherwise if seconds is None else seconds, 0.0), _LONGEST_WAIT)
