# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A command on a host, over a channel of an SSH connection."""

from __future__ import annotations

import paramiko


class ChannelStream:
    """A command over SSH. Reads come straight from paramiko's channel, whose window limits what is buffered here."""

    def __init__(self, transport: paramiko.Transport, command: str, timeout: float) -> None:
        """Raises paramiko.SSHException."""
        self._channel = transport.open_session(timeout=timeout, window_size=4 << 20)
        self._channel.settimeout(timeout)
        self._channel.set_combine_stderr(True)
        self._channel.exec_command(command)

    def send(self, block: bytes) -> None:
        self._channel.sendall(block)

    def receive(self, most: int) -> bytes:
        block: bytes = self._channel.recv(most)
        return block

    def set_timeout(self, seconds: float) -> None:
        self._channel.settimeout(seconds)

    def close(self) -> None:
        self._channel.close()
