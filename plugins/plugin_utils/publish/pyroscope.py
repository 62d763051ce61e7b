# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Sends profiles to Grafana Pyroscope: pprof in a form, to its endpoint /ingest (Pyroscope's server HTTP API)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from ..archive.capture import Capture
from ..base import libraries
from ..base.errors import ControllerError
from ..base.printable import printable

urllib3 = libraries.optional("urllib3")

_TYPES = {
    "inuse_space": ("bytes", "average"),
    "inuse_objects": ("objects", "average"),
    "alloc_space": ("bytes", "sum"),
    "alloc_objects": ("objects", "sum"),
}
_BUSY = (429, *range(500, 600))
_LONGEST_WAIT = 30
_SHOWN = 300


class PushError(ControllerError):
    """A profile could not be sent. The message says why; ``hopeless`` means that others would fail now, too."""

    def __init__(self, message: str, hopeless: bool) -> None:
        super().__init__(message)
        self.hopeless = hopeless


@dataclass(frozen=True)
class Server:
    """A Pyroscope at ``url``. ``tenant`` is sent as X-Scope-OrgID, ``headers`` are added.

    Each profile gets ``attempts``: the second at once, the others after 2, 4, 8... seconds or as the server asks. Each
    attempt is given up after ``timeout`` seconds.
    """

    url: str
    tenant: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 4
    timeout: float = 30.0

    def check(self) -> None:
        """Raises PushError if ``url`` is not an HTTP address."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PushError(f"{self.url!r} is not the address of a server, such as https://pyroscope.example.org", True)

    @property
    def key(self) -> str:
        """Identifies this server and tenant in an archive's markers."""
        return hashlib.sha256(f"{self.url.rstrip('/')} {self.tenant}".encode()).hexdigest()[:16]


def name_of(capture: Capture) -> str:
    """The series: the unit, with host, process and label as Pyroscope labels."""
    labels = {"host": capture.host, "process": capture.process, "version": capture.facts.label or ""}
    inside = ",".join(f"{key}={_label(value)}" for key, value in labels.items() if value)
    return f"{_label(capture.unit.removesuffix('.service'))}{{{inside}}}"


def push(server: Server, capture: Capture, pprof: bytes) -> None:
    """Send the profile (gzipped pprof) of a capture. Raises PushError.

    A redirect is an error: following it would send the headers to another server, whose answer would not mean that the
    profile was taken.
    """
    moment = int(capture.time)
    query = {"name": name_of(capture), "from": moment, "until": moment + 1, "format": "pprof", "spyName": "offheap"}
    retries = urllib3.Retry(
        server.attempts - 1,
        allowed_methods=None,
        status_forcelist=_BUSY,
        raise_on_status=False,
        backoff_factor=1,
        backoff_max=_LONGEST_WAIT,
        retry_after_max=_LONGEST_WAIT,
    )
    tenant = {"X-Scope-OrgID": server.tenant} if server.tenant else {}
    try:
        with _connections(server) as connections:
            answer = connections.request(
                "POST",
                f"{server.url.rstrip('/')}/ingest?{urlencode(query)}",
                fields=_form(pprof),
                headers={"User-Agent": "offheap", **tenant, **server.headers},
                timeout=server.timeout,
                retries=retries,
                redirect=False,
                preload_content=False,
            )
            with contextlib.closing(answer):
                text = answer.read(_SHOWN, decode_content=False).decode("utf-8", "replace").strip()
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # no route, refused, cut off, not HTTP
        reason = getattr(error, "reason", None) or error
        raise PushError(f"{server.url} cannot be reached: {reason} ({server.attempts} attempts)", True) from error
    if 200 <= answer.status < 300:
        return
    problem = printable(f"{server.url} answered {answer.status} {answer.reason}" + (f": {text}" if text else ""))
    if answer.status in _BUSY:
        raise PushError(f"{problem} ({server.attempts} attempts)", True)
    if 300 <= answer.status < 400:
        place = printable(answer.headers.get("Location", "nowhere")[:_SHOWN])
        raise PushError(f"{server.url} answered {answer.status} and redirects to {place}: give the final address", True)
    # 401, 403 and 404 would refuse any profile; 400, 413 and 422 refuse this one.
    raise PushError(problem, answer.status in (401, 403, 404))


def _connections(server: Server) -> Any:
    """Connections to the server, through the environment's proxy if it names one."""
    address = urlsplit(server.url)
    proxy = urllib.request.getproxies().get(address.scheme)
    if proxy and not urllib.request.proxy_bypass(address.hostname or ""):
        return urllib3.ProxyManager(proxy)
    return urllib3.PoolManager()


def _form(pprof: bytes) -> dict[str, tuple[str, bytes, str]]:
    config = {
        name: {"units": unit, "aggregation": aggregation, "display-name": name, "sampled": False}
        for name, (unit, aggregation) in _TYPES.items()
    }
    kind = "application/octet-stream"
    return {
        "profile": ("profile.pprof", pprof, kind),
        "sample_type_config": ("config.json", json.dumps(config).encode(), kind),
    }


def _label(text: str) -> str:
    """The text with each character that Pyroscope refuses in names and labels replaced by ``_``."""
    return "".join(character if character.isalnum() or character in "._-:/@" else "_" for character in text)
