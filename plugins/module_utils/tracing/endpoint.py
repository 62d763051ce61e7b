# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A profile from the HTTP or HTTPS endpoint of a unit, over its own TCP port or Unix socket.

Whoever has taken over the service, or listens in its stead, may answer anything. So the process at the other end of
the connection must be one of the unit's before it is asked; and an answer has its time and its size, and leads nowhere.
Since the kernel says who answers, no certificate of the server's has to.

This module is private to the collection.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from typing import Any, BinaryIO, Callable, NamedTuple, Sequence, cast

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import procfs, sockets

#: seconds for the whole of an answer: some endpoints count for half a minute first
PATIENCE = 90.0
#: bytes of an answer
LARGEST = 64 << 20
# Seconds until a service must have accepted the connection.
_ACCEPTED = 5.0
_POLL = 0.02
_WHO_ASKS = ". If it wants to know who asks, name a certificate and its key (certificate_file)"
_PORTS = {"http": 80, "https": 443}
_BLOCK = 1 << 16
# All that may come before the profile itself.
_LARGEST_HEAD = 1 << 16
_URL = re.compile(r"(https?)://(127\.0\.0\.1|localhost|\[::1\])(?::([0-9]{1,5}))?(/[!-~]*)?\Z")


class OfferError(OffheapError):
    """A profile that a service offers cannot be taken. The message says why, and what to do."""


class Endpoint(NamedTuple):
    """Where to ask, ``encrypted`` or not. With ``path``, that of a Unix socket, the address and port mean nothing."""

    address: str
    port: int
    target: str
    path: str
    encrypted: bool = False

    @classmethod
    def of(cls, url: str, path: str) -> Endpoint:
        """Raises OfferError for anything but HTTP and HTTPS on this host itself."""
        match = _URL.match(url)
        port = int(match[3] or _PORTS[match[1]]) if match else 0
        if not match or not 0 < port < 1 << 16:
            raise OfferError(
                f"{url[:300]!r} is no http:// or https:// URL with 127.0.0.1, localhost or [::1] as its host:"
                " profiles are only taken from services of the host itself"
            )
        address = "::1" if match[2] == "[::1]" else "127.0.0.1"
        return cls(address, port, match[4] or "/", path, match[1] == "https")

    def __str__(self) -> str:
        return self.path or f"port {self.port}"


class Answer(NamedTuple):
    """What was answered, and the process that did."""

    pid: int
    body: bytes


def ask(
    endpoint: Endpoint, unit: str, pids: Callable[[], Sequence[int]], token: str = "", certificate: str = ""
) -> Answer:
    """Ask for a profile; ``pids`` are the unit's processes, and only they are told the token, and shown the certificate
    (a file that has its key as well). Raises OfferError."""
    context = _context(certificate) if endpoint.encrypted else None
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    deadline = time.monotonic() + PATIENCE
    try:
        with _connected(endpoint) as connection:
            pid = _who_answers(connection, endpoint, unit, pids)
            started = procfs.start_ticks(pid)
            request = (
                f"GET {endpoint.target} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: offheap.profiler\r\n"
                f"{authorization}Connection: close\r\n\r\n".encode("ascii")
            )
            if context is None:
                body = _body(connection, request, endpoint, deadline)
            else:
                with context.wrap_socket(connection) as encrypted:
                    body = _body(encrypted, request, endpoint, deadline)
        if procfs.start_ticks(pid) != started:
            raise procfs.ProcessGone(pid)
    except procfs.ProcfsError as exc:
        raise OfferError(f"the process that answered for {unit} has ended: {exc}") from exc
    except (http.client.HTTPException, ValueError) as exc:
        raise OfferError(f"{endpoint} does not answer as HTTP has it: {type(exc).__name__}: {exc}"[:500]) from exc
    except ssl.SSLError as exc:
        # Some servers say no more than that to whoever shows no certificate.
        hint = "" if certificate else _WHO_ASKS
        why = exc.reason or exc.strerror
        raise OfferError(f"{endpoint} of {unit} does not answer as HTTPS has it: {why}{hint}") from exc
    except OSError as exc:
        raise OfferError(f"{endpoint} of {unit} does not answer: {exc.strerror or exc}") from exc
    return Answer(pid, body)


def _context(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate:
        try:
            context.load_cert_chain(certificate, password="")  # else it would ask at a terminal
        except (OSError, ValueError) as exc:
            raise OfferError(f"{certificate} holds no certificate and its key, without a password: {exc}") from exc
    return context


def _connected(endpoint: Endpoint) -> socket.socket:
    if endpoint.path:
        connection, where = socket.socket(socket.AF_UNIX), cast(Any, endpoint.path)
    else:
        family = socket.AF_INET6 if ":" in endpoint.address else socket.AF_INET
        connection, where = socket.socket(family), (endpoint.address, endpoint.port)
    try:
        connection.settimeout(_ACCEPTED)
        connection.connect(where)
    except BaseException:
        connection.close()
        raise
    return connection


def _who_answers(connection: socket.socket, endpoint: Endpoint, unit: str, pids: Callable[[], Sequence[int]]) -> int:
    """The process of the unit at the other end. Raises OfferError if it is none of the unit's."""
    if endpoint.path:
        pid = sockets.listener(connection)[0]
        if pid not in pids():
            raise _foreign(endpoint, unit, pid)
        return pid
    deadline = time.monotonic() + _ACCEPTED
    while time.monotonic() < deadline:
        inode = sockets.accepted(connection)
        if inode:
            own = sockets.holder(inode, pids())
            if own is not None:
                return own
            other = sockets.holder(inode, procfs.pids())
            if other is not None and other not in pids():
                raise _foreign(endpoint, unit, other)
        time.sleep(_POLL)
    raise OfferError(f"nobody has accepted a connection to {endpoint} within {_ACCEPTED:g} s: {unit} is busy, or hangs")


def _foreign(endpoint: Endpoint, unit: str, pid: int) -> OfferError:
    hint = "systemd listens there for the service: name a socket of its own" if pid == 1 else "name its own unit"
    return OfferError(f"process {pid} answers at {endpoint}, which is none of {unit}: {hint}")


class _Stream(io.RawIOBase):
    """What a server sends, until the deadline (of the monotonic clock), and no more than ``left`` bytes of it."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        super().__init__()
        self._connection = connection
        self._deadline = deadline
        self.left = _LARGEST_HEAD

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise _too_late()
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        except socket.timeout:
            raise _too_late() from None
        self.left -= count
        if self.left < 0:
            raise _too_large()
        return count

    def makefile(self, _mode: str) -> BinaryIO:
        """As http.client wants it of a socket."""
        return cast(BinaryIO, io.BufferedReader(self))


def _too_late() -> OfferError:
    return OfferError(f"the answer has not ended after {PATIENCE:g} s")


def _too_large() -> OfferError:
    return OfferError(f"the answer is larger than {LARGEST >> 20} MiB, more than any profile: is it one?")


def _body(connection: socket.socket, request: bytes, endpoint: Endpoint, deadline: float) -> bytes:
    connection.sendall(request)
    stream = _Stream(connection, deadline)
    response = http.client.HTTPResponse(cast(socket.socket, stream), method="GET")
    try:
        response.begin()
        stream.left = LARGEST
        if response.status != 200:
            hint = "; it leads elsewhere, which is not followed" if 300 <= response.status < 400 else ""
            if response.status in (401, 403):
                hint = ": it wants to know who asks. Name a file on the host with the token that it takes (token_file)"
            raise OfferError(f"{endpoint} answers {response.status} to GET {endpoint.target}{hint}")
        if response.length is not None and response.length > LARGEST:
            raise _too_large()
        blocks = iter(lambda: response.read(_BLOCK), b"")
        body = b"".join(blocks)
        if response.length:
            raise OfferError("the answer ends before its announced length")
        return body
    finally:
        response.close()
