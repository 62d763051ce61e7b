# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A server that takes or gives profiles by HTTP, and what its answers mean."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from ..base import libraries
from ..base.byte_size import as_text
from ..base.errors import ControllerError
from ..base.printable import printable

urllib3 = libraries.optional("urllib3")

_BUSY = (429, *range(500, 600))
_LONGEST_WAIT = 30
_SHOWN = 300
_MOST_OF_ANSWER = 1 << 16
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
# As of a service's own endpoint.
_LARGEST_PROFILE = 64 << 20
_LONGEST_ANSWER = 90


class ServerError(ControllerError):
    """A profile could not be sent or had. The message says why; ``hopeless`` means that others would fail now, too.
    ``status`` is that of the answer, 0 if there was none."""

    def __init__(self, message: str, hopeless: bool, status: int = 0) -> None:
        super().__init__(message)
        self.hopeless = hopeless
        self.status = status


@dataclass(frozen=True)
class Server:
    """A server at ``url``. ``tenant`` is sent as X-Scope-OrgID, ``headers`` are added.

    Each profile gets ``attempts``: the second at once, the others after 2, 4, 8... seconds or as the server asks. Each
    attempt is given up after ``timeout`` seconds.
    """

    url: str
    tenant: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 4
    timeout: float = 30.0

    def check(self) -> None:
        """Raises ServerError if ``url`` is not an HTTP address, or may hold a password, which messages would show, or
        if a header cannot be sent."""
        refuse_secrets(self.url)
        refuse_headers(self.headers)
        if parts_of(self.url).scheme not in ("http", "https"):
            raise ServerError(f"{self.url!r} is no server's address, such as https://pyroscope.example.org", True)

    @property
    def key(self) -> str:
        """Identifies this server and tenant in an archive's markers."""
        return hashlib.sha256(f"{self.url.rstrip('/')} {self.tenant}".encode()).hexdigest()[:16]

    def post(self, path: str, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
        """Send ``content`` (urllib3's ``fields`` or ``body``) to a path below the address; the beginning of the answer.

        Raises ServerError. A redirect is an error: following it would send the headers to another server, whose answer
        would not mean that the profile was taken.
        """
        return self._asked("POST", path, headers, content, self._taken)

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, **content: Any) -> bytes:
        """The whole answer, unpacked. Raises ServerError, also of what is too large or takes too long."""
        return self._asked(method, path, headers, content, self._whole)

    def _asked(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None,
        content: Mapping[str, Any],
        read: Callable[[Any], bytes],
    ) -> bytes:
        retries = urllib3.Retry(
            self.attempts - 1,
            allowed_methods=None,
            status_forcelist=_BUSY,
            raise_on_status=False,
            backoff_factor=1,
            backoff_max=_LONGEST_WAIT,
            retry_after_max=_LONGEST_WAIT,
        )
        tenant = {"X-Scope-OrgID": self.tenant} if self.tenant else {}
        try:
            with self._connections() as connections:
                answer = connections.request(
                    method,
                    f"{self.url.rstrip('/')}{path}",
                    headers={"User-Agent": "offheap", **(headers or {}), **tenant, **self.headers},
                    timeout=self.timeout,
                    retries=retries,
                    redirect=False,
                    preload_content=False,
                    **content,
                )
                with contextlib.closing(answer):
                    told = read(answer) if 200 <= answer.status < 300 else _beginning(answer)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:  # no route, refused, cut off, not HTTP
            reason = getattr(error, "reason", None) or error
            raise ServerError(f"{self.url} cannot be reached: {reason} ({self.attempts} attempts)", True) from error
        if 200 <= answer.status < 300:
            return told
        text = told[:_SHOWN].decode("utf-8", "replace").strip()
        problem = printable(f"{self.url} answered {answer.status} {answer.reason}" + (f": {text}" if text else ""))
        if answer.status in _BUSY:
            raise ServerError(f"{problem} ({self.attempts} attempts)", True)
        if 300 <= answer.status < 400:
            place = printable(answer.headers.get("Location", "nowhere")[:_SHOWN])
            raise ServerError(
                f"{self.url} answered {answer.status} and redirects to {place}: give the final address", True
            )
        # 401, 403 and 404 would refuse any profile; 400, 413 and 422 refuse this one.
        raise ServerError(problem, answer.status in (401, 403, 404), answer.status)

    def _taken(self, answer: Any) -> bytes:
        # Whatever serves the pages of a web interface, or asks for a login, has one for any path.
        if answer.headers.get("Content-Type", "").lower().startswith("text/html"):
            raise ServerError(
                f"{self.url} answered {answer.status} with a web page: nothing there takes profiles", True
            )
        return _beginning(answer)

    def _whole(self, answer: Any) -> bytes:
        parts: list[bytes] = []
        size, end = 0, time.monotonic() + _LONGEST_ANSWER
        while part := answer.read1(_MOST_OF_ANSWER, decode_content=True):
            parts.append(part)
            size += len(part)
            if size > _LARGEST_PROFILE:
                raise ServerError(f"{self.url} answered more than {as_text(_LARGEST_PROFILE)}", True)
            if time.monotonic() > end:
                raise ServerError(f"{self.url} took more than {_LONGEST_ANSWER} s to answer", True)
        return b"".join(parts)

    def _connections(self) -> Any:
        """Connections to the server, through the environment's proxy if it names one."""
        address = urlsplit(self.url)
        proxy = urllib.request.getproxies().get(address.scheme)
        if proxy and not urllib.request.proxy_bypass(address.hostname or ""):
            whole = proxy if "://" in proxy else f"http://{proxy}"  # as curl reads it
            user = unquote(urlsplit(whole).netloc.rpartition("@")[0])
            return urllib3.ProxyManager(whole, proxy_headers=urllib3.make_headers(proxy_basic_auth=user or None))
        return urllib3.PoolManager()


def refuse_secrets(url: str) -> None:
    """Raises ServerError, without the address, if a user's name or password may be in it: nobody would send these."""
    if "@" in url:
        raise ServerError(
            "the server's address has an @, as behind a user's name and password: give these as a header, such as"
            " Authorization: Basic ..., since messages show addresses",
            True,
        )


def refuse_headers(headers: Mapping[str, str]) -> None:
    """Raises ServerError, without the value, which may be a secret, if one is none. What sends it would show it."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):  # perhaps a value whose name was forgotten
            raise ServerError(
                "a header has no name, or one that is none: give name and value, as X-Scope-OrgID: a", True
            )
        if not (value.isascii() and value.isprintable()):
            raise ServerError(
                f"the header {name} has characters that cannot be sent, such as a line break at its end", True
            )


def parts_of(url: str) -> SplitResult:
    """Those of an address; all are empty if it has no host, or a port that is none."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname and parts.port != 0 and not parts.netloc.endswith(":"):
            return parts
    return urlsplit("")


def _beginning(answer: Any) -> bytes:
    """What is there, once: a server that goes on slowly is not waited for."""
    told: bytes = answer.read1(_MOST_OF_ANSWER, decode_content=False)
    return told
