# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Connections to a web server that never end their request, once its workers are sampled."""

from __future__ import annotations

import socket
import time


def main() -> None:
    time.sleep(5)
    held = [socket.create_connection(("127.0.0.1", 80)) for _number in range(400)]
    for connection in held:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    time.sleep(600)


if __name__ == "__main__":
    main()
