# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Host keys, judged as OpenSSH would judge them by its files (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").

paramiko's own reader stops at a line with a marker, knows no pattern and no alias, and compares with one key only.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from ..plugins.plugin_utils.base.errors import ControllerError
from ..plugins.plugin_utils.base.options import user_path
from .target import Settings

_REVOKED = "@revoked"
_PORT = re.compile(r"\[(.*)\]:\d+\Z")


class ConnectError(ControllerError):
    """A host cannot be reached, has a changed key, or refuses the login. The message says which and what to do."""


@dataclass(frozen=True)
class _Line:
    """One key of the file. ``kind`` and ``text`` are what paramiko calls name and base64."""

    revoked: bool
    names: tuple[str, ...]
    kind: str
    text: str

    def fits(self, name: str) -> bool:
        """Whether the line speaks of this host; with a negated pattern that matches it does not."""
        return any(_matches(known, name) for known in self.names) and not any(
            known.startswith("!") and _matches(known[1:], name) for known in self.names
        )

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen -l shows it."""
        digest = hashlib.sha256(base64.b64decode(self.text + "==")).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class KnownHosts(paramiko.MissingHostKeyPolicy):
    """Judges host keys: a known one passes, a changed or revoked one never, a new one only with ``accept_new``.

    paramiko itself is given no key, so that it asks for each.
    """

    _writing = threading.Lock()

    def __init__(self, found: Settings, accept_new: bool) -> None:
        self._files = [user_path(name) for name in found.words("userknownhostsfile")]
        system = [Path(name) for name in found.words("globalknownhostsfile")]
        self._lines = [line for path in (*self._files, *system) for line in _read(path)]
        self._alias = found.one("hostkeyalias")
        self._accept_new = accept_new or found.one("stricthostkeychecking") in ("accept-new", "no", "off", "false")

    def kinds(self, hostname: str) -> set[str]:
        """The kinds of keys that are known of a host, which it should be asked for first."""
        return {line.kind for line in self._about(hostname) if not line.revoked}

    def _about(self, hostname: str) -> list[_Line]:
        return [line for line in self._lines if line.fits(self._alias or hostname)]

    def missing_host_key(self, _client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        shown, about = (key.get_name(), key.get_base64()), self._about(hostname)
        # Of another port, OpenSSH takes the host's key without one, too.
        others = about or ([] if self._alias else self._about(_PORT.sub(r"\1", hostname)))
        same = [line for line in others if (line.kind, line.text) == shown]
        if any(line.revoked for line in same):
            raise ConnectError(
                f"the host key of {hostname} ({key.get_name()} {key.fingerprint}) is REVOKED in known_hosts: it may be"
                " stolen, and somebody may intercept the connection. Nothing was sent"
            )
        if same:
            return
        other = next((line for line in about if not line.revoked), None)
        if other is not None:
            raise ConnectError(
                f"the host key of {hostname} has CHANGED (it shows {key.fingerprint}, known is {other.fingerprint})."
                " Either the host was reinstalled or somebody intercepts the connection; nothing was sent. If it was"
                f" reinstalled, remove the old key with ssh-keygen -R '{self._alias or hostname}'"
            )
        if not self._accept_new:
            raise ConnectError(
                f"its host key is unknown ({key.get_name()} {key.fingerprint}). Compare it with the host's own, then"
                " connect once with ssh, or add --accept-new"
            )
        if self._files:
            with self._writing:
                self._files[0].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with self._files[0].open("ab+") as stream:
                    if stream.tell():
                        stream.seek(-1, os.SEEK_END)
                    begin = b"" if stream.read(1) in (b"", b"\n") else b"\n"
                    stream.write(begin + f"{self._alias or hostname} {key.get_name()} {key.get_base64()}\n".encode())

    def transport(self, hostname: str, port: int) -> Any:
        """What makes the connections to a host for paramiko: one that asks for the kinds of keys known first."""
        known = self.kinds(hostname if port == 22 else f"[{hostname}]:{port}")

        def made(*arguments: Any, **options: Any) -> paramiko.Transport:
            transport = paramiko.Transport(*arguments, **options)
            security = transport.get_security_options()
            security.key_types = sorted(
                security.key_types, key=lambda kind: ("ssh-rsa" if kind.startswith("rsa-") else kind) not in known
            )
            return transport

        return made


def _read(path: Path) -> Iterator[_Line]:
    """The keys in a file, without those of authorities, whose certificates paramiko cannot check."""
    text = ""
    with contextlib.suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        marker, *words = line.split() if line.startswith("@") else ("", *line.split())
        if len(words) >= 3 and marker in ("", _REVOKED) and not words[0].startswith("#"):
            yield _Line(marker == _REVOKED, tuple(words[0].split(",")), words[1], words[2])


def _matches(known: str, name: str) -> bool:
    """OpenSSH's patterns know only * and ? (ssh_config(5), "PATTERNS"), in small letters or large; a hashed name is
    compared by its hash."""
    if known.startswith("|1|"):
        try:
            return paramiko.HostKeys.hash_host(name, known) == known
        except (ValueError, IndexError, AssertionError):
            return False
    pattern = re.escape(known).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None
