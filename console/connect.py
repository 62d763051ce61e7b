# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Connections to hosts; each host key is checked as OpenSSH would check it."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from fabric import Config, Connection
from paramiko.ssh_exception import NoValidConnectionsError

from ..plugins.plugin_utils.base.options import user_path
from ..plugins.plugin_utils.fetch.host_session import ProcessStream, Session, Stream, command
from .channel import ChannelStream
from .known_hosts import ConnectError, KnownHosts
from .target import Settings, Target, TargetError, settings

#: hosts that log in at once behind one gateway: sshd starts to refuse above ten that have not (MaxStartups)
PER_GATEWAY = 8
_ATTEMPTS = 5
#: seconds for the handshake and for the login
_PHASE = 30.0

logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass
class _Gateway:
    """A connection that others go through; the first of them opens it."""

    connection: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)
    places: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(PER_GATEWAY))


class Connector:
    """Opens sessions. One object serves all hosts and threads of a run, so that they share gateways.

    ``password`` returns the sudo password for a host, or None. Use it as a context manager.
    """

    def __init__(self, accept_new: bool, connect_timeout: float, password: Callable[[Target], str | None]) -> None:
        self._accept_new = accept_new
        self._timeout = connect_timeout
        self._password = password
        self._gateways: dict[str, _Gateway] = {}
        self._streams: set[Stream] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def __enter__(self) -> Connector:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.hang_up()
        for gateway in self._gateways.values():
            gateway.connection.close()

    def hang_up(self) -> None:
        """End the sessions that other threads still have or are about to begin."""
        with self._lock:
            self._is_over = True
            open_now = list(self._streams)
        for stream in open_now:
            stream.close()

    @contextlib.contextmanager
    def session(self, target: Target) -> Iterator[Session]:
        """A session with the host, as root if its settings say so.

        Raises ConnectError, TargetError, SessionError.
        """
        with contextlib.ExitStack() as stack:
            stream, ready, prompt = self._stream(target, stack)
            with self._lock:
                if self._is_over:
                    raise ConnectError("interrupted")
                self._streams.add(stream)
            stack.callback(self._forget, stream)
            yield Session(stream, ready, prompt, lambda: self._password(target))

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def _stream(self, target: Target, stack: contextlib.ExitStack) -> tuple[Stream, str, str]:
        """Our command on the host, with its ready word and sudo's prompt; ``stack`` ends it and the connection."""
        if target.local:
            line, ready, prompt = command(target.python, target.become and os.geteuid() != 0, target.become_user)
            local = stack.enter_context(contextlib.closing(ProcessStream(["/bin/sh", "-c", line], _PHASE)))
            return local, ready, prompt
        found = settings(target.address, target.arguments)
        as_root = found.user == "root" and target.become_user == "root"
        line, ready, prompt = command(target.python, target.become and not as_root, target.become_user)
        connection = self._connection(target, found, stack)
        try:
            stream = ChannelStream(connection.transport, line, _PHASE)
        except (paramiko.SSHException, OSError) as error:
            raise ConnectError(f"cannot run a command there: {error}") from error
        return stack.enter_context(contextlib.closing(stream)), ready, prompt

    def _connection(self, target: Target, found: Settings, stack: contextlib.ExitStack) -> Connection:
        jump = found.one("proxyjump")
        if jump is None:
            connection = self._open(target.name, found, target.password, None)
        else:
            gateway = self._gateway(jump, _configuration(target))
            with gateway.places:  # until it has logged in: a session may last for hours
                with gateway.lock:
                    if not gateway.connection.is_connected:
                        _handshake(gateway.connection, f"the jump host {jump}")
                connection = self._open(target.name, found, target.password, gateway.connection)
        return stack.enter_context(contextlib.closing(connection))

    def _gateway(self, jump: str, configuration: list[str]) -> _Gateway:
        """The end of the chain ``a,b,c``: each hop is reached through the one before it (ssh_config(5))."""
        with self._lock:
            if jump not in self._gateways:
                first, *others = (_hop(hop, configuration) for hop in jump.split(","))
                connection = self._made(first, None, None)
                for found in others:
                    connection = self._made(found, None, connection)
                self._gateways[jump] = _Gateway(connection)
            return self._gateways[jump]

    def _made(self, found: Settings, password: str | None, gateway: Connection | str | None) -> Connection:
        keys = [user_path(_expanded(os.path.expandvars(name), found)) for name in found.lines("identityfile")]
        known = KnownHosts(found, self._accept_new)
        arguments = {
            "allow_agent": found.one("identitiesonly") != "yes",
            "look_for_keys": False,
            "key_filename": [str(path) for path in keys if path.is_file()],
            "password": password,
            "banner_timeout": _PHASE,
            "auth_timeout": _PHASE,
            "compress": found.one("compression") == "yes",
            "transport_factory": known.transport(found.hostname, found.port),
        }
        connection = Connection(
            found.hostname,
            user=found.user,
            port=found.port,
            config=Config(ssh_config=paramiko.SSHConfig()),
            gateway=gateway or False,
            connect_timeout=int(found.one("connecttimeout") or self._timeout),
            connect_kwargs=arguments,
        )
        connection.client.set_missing_host_key_policy(known)
        return connection

    def _open(self, name: str, found: Settings, password: str | None, gateway: Connection | None) -> Connection:
        command = found.one("proxycommand")
        connection = self._made(found, password, gateway or (command and _expanded(command, found)))
        _handshake(connection, name)
        return connection


def _expanded(value: str, found: Settings) -> str:
    """A ProxyCommand or IdentityFile with what its tokens stand for (ssh_config(5)): ``ssh -G`` leaves them there."""
    tokens = {
        "%": "%",
        "d": str(Path.home()),
        "h": found.hostname,
        "i": str(os.getuid()),
        "k": found.one("hostkeyalias") or found.hostname,
        "L": socket.gethostname().partition(".")[0],
        "l": socket.gethostname(),
        "n": found.one("host") or found.hostname,
        "p": str(found.port),
        "r": found.user,
        "u": getpass.getuser(),
    }
    return re.sub(f"%([{''.join(tokens)}])", lambda token: tokens[token[1]], value)


def _configuration(target: Target) -> list[str]:
    """The one argument that ssh passes on to the ssh for its jump host: another configuration file."""
    arguments = iter(target.arguments)
    return [word for argument in arguments if argument == "-F" for word in ("-F", next(arguments, ""))]


def _hop(hop: str, configuration: list[str]) -> Settings:
    """Settings of a jump host: [user@]host[:port], or a URI of that."""
    return settings(hop if hop.startswith("ssh://") else f"ssh://{hop}", configuration)


def _handshake(connection: Connection, name: str) -> None:
    """Connect and log in; retry after a while if sshd sheds load (MaxStartups). Raises ConnectError."""
    for attempt in range(_ATTEMPTS):
        try:
            connection.open()
            connection.transport.set_keepalive(15)
            return
        except (EOFError, ConnectionResetError, paramiko.SSHException) as error:
            connection.client.close()
            if not _is_shed(error) or attempt == _ATTEMPTS - 1:
                raise ConnectError(_explained(error, name, connection)) from error
        except OSError as error:
            raise ConnectError(_explained(error, name, connection)) from error
        time.sleep(random.uniform(0.2, 0.6) * 2**attempt)


def _is_shed(error: Exception) -> bool:
    return not isinstance(error, paramiko.AuthenticationException) and (
        isinstance(error, (EOFError, ConnectionResetError))
        or "banner" in str(error)
        or "Connection reset" in str(error)
    )


def _explained(error: Exception, name: str, connection: Connection) -> str:
    where = f"{connection.host} port {connection.port}"
    match error:
        case paramiko.PasswordRequiredException():
            return f"the key for {name} has a passphrase: load it into ssh-agent"
        case paramiko.AuthenticationException():
            return f"{name} refuses the login: {error}. Try it with ssh -v, which shows what the host offers"
        case NoValidConnectionsError() if not all(
            isinstance(one, ConnectionRefusedError) for one in error.errors.values()
        ):
            reasons = {getattr(one, "strerror", None) or str(one) for one in error.errors.values()}
            return f"there is no way to {name}: {', '.join(sorted(reasons))}. Check its address, and the network or VPN"
        case NoValidConnectionsError() | ConnectionRefusedError():
            return f"nothing listens for SSH at {where}"
        case TimeoutError():
            return f"{where} does not answer within {connection.connect_timeout} seconds"
        case socket.gaierror():
            return f"no address is known for {connection.host}: {error.strerror}"
    return f"no connection to {name}: {error or type(error).__name__}"


__all__ = ["ConnectError", "Connector", "TargetError"]
