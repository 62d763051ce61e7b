# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""An S3 server in a process of its own: moto's, which can refuse requests for a while and tell wrong times.

python s3.py        prints its port, and serves until it is ended
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_STRANGE = "/offheap-strange"
_BUSY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Server:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        #: what libraries need to find it
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
        }

    def bucket(self) -> str:
        """The address of a new bucket."""
        name = f"bucket-{uuid.uuid4()}"
        self._call("PUT", f"/{name}")
        return f"s3://{name}"

    def be_strange(self, refused: float = 0.0, wrong_clock: bool = False) -> None:
        """From now on refuse this share of the requests with 503, and tell random times."""
        self._call("POST", f"{_STRANGE}/{refused}/{int(wrong_clock)}")

    def requests(self) -> list[str]:
        """Method and path of each request to a bucket since this was last asked."""
        return self._call("GET", _STRANGE).decode().split("\n")[:-1]

    def _call(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}{path}", method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content


@contextmanager
def running() -> Iterator[Server]:
    process = subprocess.Popen([sys.executable, Path(__file__)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as output:
        try:
            yield Server(int(output.readline()))
        finally:
            process.kill()
            process.wait()


class _Strange:
    """The application, one request at a time, since moto does not look at whether it is asked by several at once."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._turn = threading.Lock()
        self._random = random.Random(7)
        self._refused = 0.0
        self._wrong_clock = False
        self._requests: list[str] = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._turn:
            path = environ["PATH_INFO"]
            if path.startswith(_STRANGE):
                return self._control(environ["REQUEST_METHOD"], path, start)
            self._requests.append(f"{environ['REQUEST_METHOD']} {path}")
            if self._random.random() < self._refused:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_BUSY)))])
                return [] if environ["REQUEST_METHOD"] == "HEAD" else [_BUSY]
            return self._answer(environ, start)

    def _control(self, method: str, path: str, start: Callable[..., Any]) -> list[bytes]:
        said = "".join(f"{line}\n" for line in self._requests).encode()
        if method == "POST":
            _empty, _strange, refused, wrong = path.split("/")
            self._refused, self._wrong_clock = float(refused), wrong == "1"
        else:
            self._requests.clear()
        start("200 OK", [("Content-Length", str(len(said)))])
        return [said]

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not self._wrong_clock:
            return list(self._app(environ, start))
        told: list[Any] = []

        def later(*arguments: Any) -> None:
            told[:] = arguments

        content = b"".join(self._app(environ, later))
        moment = f"{self._random.randrange(1990, 2090)}-11-22T03:00:00.000Z".encode()
        content = re.sub(rb"<LastModified>[^<]*<", b"<LastModified>" + moment + b"<", content)
        headers = {**dict(told[1]), "Content-Length": str(len(content))}
        if environ["REQUEST_METHOD"] == "HEAD":
            headers["Content-Length"] = dict(told[1]).get("Content-Length", "0")
        for name in {"Last-Modified", "last-modified"} & set(headers):
            headers[name] = f"Wed, 22 Nov {self._random.randrange(1990, 2090)} 03:00:00 GMT"
        start(told[0], list(headers.items()))
        return [content]


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = DomainDispatcherApplication(create_backend_app)  # type: ignore[no-untyped-call,unused-ignore]
    server = make_server("127.0.0.1", 0, _Strange(application), threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()
