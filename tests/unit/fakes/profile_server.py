# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A service that answers over HTTP, in ways of its own. Run it as a program: a port (0 for any) or a socket's path.

It prints its port and serves one connection at a time. ``/profile`` answers with the file named by its second argument.
With a third, a certificate and its key, it speaks HTTPS, and only with whoever shows the same certificate.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

OK = b"HTTP/1.1 200 OK\r\n"


class Service(NamedTuple):
    pid: int
    port: int


@contextlib.contextmanager
def running(where: str | Path = "0", profile: Path | None = None, certificate: Path | None = None) -> Iterator[Service]:
    command = [sys.executable, __file__, str(where), *(str(path) for path in (profile, certificate) if path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Service(process.pid, int(process.stdout.readline()))
        finally:
            process.kill()


def _answer(target: str, connection: socket.socket, headers: list[bytes]) -> None:
    if target == "/guarded" and b"Authorization: Bearer s3cret\r\n" not in headers:
        connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
    elif target in ("/profile", "/guarded"):
        body = Path(sys.argv[2]).read_bytes()
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    elif target == "/until-closed":
        connection.sendall(OK + b"\r\n" + Path(sys.argv[2]).read_bytes())
    elif target == "/chunked":
        body = Path(sys.argv[2]).read_bytes()
        connection.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
    elif target == "/endless":
        connection.sendall(OK + b"\r\n")
        while True:
            connection.sendall(bytes(1 << 16))
    elif target == "/announces-too-much":
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % (1 << 40))
    elif target == "/announces-more-than-it-sends":
        connection.sendall(OK + b"Content-Length: 100\r\n\r\nshort")
    elif target == "/one-chunk-of-all-memory":
        connection.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (1 << 60) + b"x")
    elif target == "/redirects":
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:22/\r\nContent-Length: 0\r\n\r\n")
    elif target == "/continues-for-ever":
        while True:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    elif target == "/drips":
        while True:
            connection.sendall(b"H")
            time.sleep(0.05)
    elif target == "/headers-for-ever":
        connection.sendall(OK)
        while True:
            connection.sendall(b"X: " + b"y" * 60000 + b"\r\n")
    elif target == "/no-http":
        connection.sendall(b"\x00\x01 hello\r\n\r\n")
    elif target == "/page":
        connection.sendall(OK + b"Content-Length: 6\r\n\r\n<html>")
    else:
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def main() -> None:
    where = sys.argv[1]
    if where.isdigit():
        listener = socket.create_server(("127.0.0.1", int(where)))
        port = listener.getsockname()[1]
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
        listener.listen()
        port = 0
    print(port, flush=True)
    context = None
    if len(sys.argv) > 3:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=sys.argv[3])
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(sys.argv[3])
    while True:
        connection, _address = listener.accept()
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(connection, True) if context else connection as connection,
        ):
            with connection.makefile("rb") as request:  # else it would keep the connection open
                words = request.readline().split()
                if words[-1:] != [b"HTTP/1.1"]:  # such as the random bytes of a handshake: no more lines may come
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    continue
                headers = list(iter(request.readline, b"\r\n"))
            _answer(words[1].decode(), connection, headers)


if __name__ == "__main__":
    main()
