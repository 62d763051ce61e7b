# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Agents that say what a test has them say."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.offheap.profiler.plugins.module_utils.agent import client

Serve = Callable[..., client.AgentSocket]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """An agent that gives each line one canned answer; None is silence."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes | None, pid: int | None = None, unit: str = "u.service") -> client.AgentSocket:
        path = tmp_path / unit / f"{os.getpid() if pid is None else pid}.sock"
        path.parent.mkdir(exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        directory = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)
        listener.listen()
        listeners.append(listener)
        got: list[bytes] = []

        def run() -> None:
            try:
                connection, _address = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    for line in connection.makefile("rb"):
                        got.append(line)
                        if answer is not None:
                            connection.sendall(answer)
                except OSError:
                    pass

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)
        return client.find(unit, str(tmp_path))[0]

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(10)


def line(**values: object) -> bytes:
    return json.dumps({"protocol": 1, "ok": True, **values}).encode() + b"\n"
