# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Hosts that ask for the password of sudo although it does not run there."""

from __future__ import annotations

import re
from unittest.mock import Mock

import pytest

from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch import host_session
from ansible_collections.offheap.profiler.plugins.plugin_utils.fetch.host_session import Session, SessionError


class Liar:
    """Prints every prompt that the command line could stand for, and keeps what it is sent."""

    def __init__(self, line: str) -> None:
        tokens = set(re.findall(r"[0-9a-f]{16}", line))
        self._says = [f"offheap-password-{token}:".encode() for token in tokens] + [b"[sudo] password for me: ", b""]
        self.sent = b""

    def send(self, block: bytes) -> None:
        self.sent += block

    def receive(self, _most: int) -> bytes:
        return self._says.pop(0)

    def set_timeout(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("become", [False, True])
def test_a_host_that_asks(become: bool) -> None:
    line, ready, prompt = host_session.command("python3", become, "root")
    liar, password = Liar(line), Mock(return_value="geheim")
    with pytest.raises(SessionError, match="did not start"):
        Session(liar, ready, prompt, password)
    assert (b"geheim" in liar.sent, password.called) == (become, become)
