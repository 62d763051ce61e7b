# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Which hosts to look at, and how OpenSSH would get there."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from fabric.connection import derive_shorthand

from ..plugins.plugin_utils.base.errors import ControllerError


class TargetError(ControllerError):
    """A host, an inventory or OpenSSH's settings for them make no sense. The message says which."""


@dataclass(frozen=True)
class Target:
    """A host. ``name`` is what people call it, and is unique; ``address`` is what OpenSSH connects to.

    ``arguments`` are OpenSSH's own (``-o``, ``-i``, ``-J`` ...). ``python`` is the host's interpreter.
    """

    name: str
    address: str
    arguments: tuple[str, ...] = ()
    password: str | None = field(default=None, repr=False)
    python: str = "python3"
    become: bool = True
    become_user: str = "root"
    become_password: str | None = field(default=None, repr=False)
    local: bool = False


def from_word(word: str, keys: Sequence[str] = ()) -> Target:
    """A host as -H takes it: [user@]host[:port]. localhost is this machine, without SSH."""
    try:
        parts = derive_shorthand(word)
    except ValueError:  # a port that is no number
        parts = {"host": ""}
    if not parts["host"]:
        raise TargetError(f"{word!r} is not a host: expected [user@]host[:port], and commas between several")
    if word == "localhost":
        return Target(word, word, local=True)
    arguments = [argument for key in keys for argument in ("-i", key)]
    if parts["user"]:
        arguments += ["-l", parts["user"]]
    if parts["port"]:
        arguments += ["-p", str(parts["port"])]
    return Target(word, parts["host"], tuple(arguments))


@dataclass(frozen=True)
class Settings:
    """What ssh_config(5) says about a host, by keyword in lower case."""

    values: dict[str, list[str]]

    def one(self, keyword: str) -> str | None:
        """The value, or None."""
        found = self.values.get(keyword, ["none"])[0]
        return None if found == "none" else found

    def words(self, keyword: str) -> list[str]:
        """The values of a keyword that may have several on a line."""
        found = [word for line in self.values.get(keyword, []) for word in _words(line)]
        return [word for word in found if word != "none"]

    def lines(self, keyword: str) -> list[str]:
        """The values of a keyword that may have several, each on a line of its own."""
        return [line for line in self.values.get(keyword, []) if line != "none"]

    @property
    def hostname(self) -> str:
        return self.values["hostname"][0]

    @property
    def user(self) -> str:
        return self.values["user"][0]

    @property
    def port(self) -> int:
        return int(self.values["port"][0])


def _words(line: str) -> list[str]:
    """OpenSSH quotes words with blanks, and leaves other quotes as they are."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def settings(address: str, arguments: Sequence[str]) -> Settings:
    """OpenSSH's settings for a host, Include and Match resolved by OpenSSH itself. Raises TargetError."""
    try:
        done = subprocess.run(
            ["ssh", "-G", *arguments, "--", address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise TargetError(f"OpenSSH's client is needed to read its settings, but ssh cannot be run: {error}") from error
    if done.returncode:
        raise TargetError(f"OpenSSH refuses its settings: {done.stderr.strip()}")
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        keyword, _blank, value = line.partition(" ")
        values.setdefault(keyword, []).append(value)
    values.setdefault("host", [address])  # which OpenSSH before 9 does not say
    return Settings(values)
