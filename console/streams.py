# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The two ways to run a command on a host: a channel of an SSH connection, and a process of this machine."""

from __future__ import annotations

import socket
import subprocess

import paramiko


class ChannelStream:
    """A command over SSH. It is read from paramiko's channel itself, whose window bounds what waits here."""

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


class ProcessStream:
    """A command on this machine."""

    def __init__(self, command: str, timeout: float) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(["/bin/sh", "-c", command], stdin=fd, stdout=fd, stderr=fd)

    def send(self, block: bytes) -> None:
        self._socket.sendall(block)

    def receive(self, most: int) -> bytes:
        return self._socket.recv(most)

    def set_timeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
