# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Talk to the agent in a profiled process: a line to its control socket, a line of JSON back.

The service's user may write to the socket's directory, so no link in it is followed, and a listener is trusted only
after the kernel has confirmed that it is the process that the socket is named after, and its user the service's. A
process that may not write there listens at an abstract name (unix(7)), which anybody could take: only a process of the
unit is asked there.
Answers are hostile until checked: they are bounded in size and time, must be JSON objects of the protocol's version,
and a dump's path must be in the spool that the caller knows.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from typing import Any, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError
from ansible_collections.offheap.profiler.plugins.module_utils.host import cgroup, places, procfs, sockets

PROTOCOL = 1
_NAME = re.compile(r"([1-9][0-9]{0,9})\.sock\Z")
_MAX_ANSWER = 1 << 20
_LISTENS = b"00010000"  # SO_ACCEPTCON, among the flags in /proc/net/unix
_TO_ACCEPT = 10.0  # seconds in which an agent takes one of those that wait for it
_UNIT_IN_NAME = 80  # bytes of a unit's name in an abstract one, as in the agent's config.c


class AgentError(OffheapError):
    """The agent cannot be reached, refuses, or breaks the protocol. The message says which."""


class AgentGone(AgentError):
    """Nobody is listening: the process has ended, or its agent could not open the socket."""


class AgentSocket(NamedTuple):
    """A control socket; ``pid`` is the process's pid as the process itself sees it, and the socket's name.

    ``path`` begins with ``@`` where it is no file but an abstract name.
    """

    pid: int
    path: str


class WrittenDump(NamedTuple):
    """The answer to a dump command. ``objects`` and ``bytes`` are the header's totals, not unbiased, or None.

    ``rss_before`` and ``rss_after`` are bytes, if it was ``trim``.
    """

    path: str
    size: int
    time: float
    sample_interval: int | None
    objects: int | None
    bytes: int | None
    rss_before: int | None = None
    rss_after: int | None = None


def directory_of(unit: str, root: str = places.SOCKETS) -> str:
    """The directory of the sockets of a unit's agents. Raises AgentError for what cannot be a unit."""
    if not unit or "/" in unit or "\0" in unit or unit in (".", ".."):
        raise AgentError(f"not the name of a unit: {unit!r}")
    return os.path.join(root, unit)


def find(unit: str, root: str = places.SOCKETS) -> list[AgentSocket]:
    """The control sockets of a unit, by pid. One left over from a killed process refuses connections."""
    directory = directory_of(unit, root)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        names = []
    except OSError as exc:
        raise AgentError(f"cannot read {directory}: {exc.strerror}") from exc
    found = []
    for name in names:
        match = _NAME.match(name)
        if match:
            found.append(AgentSocket(int(match.group(1)), os.path.join(directory, name)))
    return sorted(found + _abstract(unit))


def _abstract(unit: str) -> list[AgentSocket]:
    """The agents of a unit's processes that listen at an abstract name (proc(5), /proc/net/unix)."""
    prefix = b"@offheap/" + os.fsencode(unit)[:_UNIT_IN_NAME] + b"/"
    found = []
    for flags, _inode, name in sockets.unix():
        pid = name[len(prefix) :]
        if flags == _LISTENS and name.startswith(prefix) and pid.isdigit() and cgroup.belongs_to(int(pid), unit):
            found.append(AgentSocket(int(pid), os.fsdecode(name)))
    return found


class Connection:
    """A connection to one agent, for any number of commands. Use it as a context manager.

    ``timeout`` is in seconds and covers each request as a whole. ``proc`` is the root of procfs.
    """

    def __init__(self, agent: AgentSocket, timeout: float = 30.0, proc: str = "/proc") -> None:
        self._agent = agent
        self._timeout = timeout
        self._received = b""
        self._owner: int | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect()
            self.peer = self._check_peer(proc)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._socket.close()

    def _connect(self) -> None:
        path = self._agent.path
        self._socket.settimeout(self._timeout)
        try:
            if path.startswith("@"):
                self._connect_to("\0" + path[1:])
                return
            directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Held open: what is connected to below is what was looked at here. And a path may be too long.
                found = os.open(os.path.basename(path), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
                self._owner = os.fstat(directory).st_uid
            finally:
                os.close(directory)
            try:
                if stat.S_ISLNK(os.fstat(found).st_mode):
                    raise AgentError(f"{path} is a link, which no agent makes: it may lead to another unit's agent")
                self._connect_to(f"/proc/self/fd/{found}")
            finally:
                os.close(found)
        except (FileNotFoundError, ConnectionRefusedError) as exc:
            raise AgentGone(f"no agent listens at {path}") from exc
        except OSError as exc:
            raise AgentError(f"cannot connect to {path}: {exc.strerror or exc}") from exc

    def _connect_to(self, path: str) -> None:
        deadline = time.monotonic() + min(self._timeout, _TO_ACCEPT)
        while True:
            try:
                self._socket.connect(path)
                return
            except BlockingIOError:  # as many others as allowed are waiting to be accepted
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def _check_peer(self, proc: str) -> int:
        """The listener's pid as this process sees it.

        Raises AgentError unless the socket is named after it and it belongs to the directory's owner or to root.
        """
        pid, uid = sockets.listener(self._socket)
        if pid != self._agent.pid and self._agent.pid not in procfs.own_pids(pid, proc):
            raise AgentError(f"process {pid} listens at {self._agent.path}, not the one with the pid in its name")
        if self._owner is not None and uid not in (0, self._owner):
            raise AgentError(f"user {uid} listens at {self._agent.path}, in a directory of user {self._owner}")
        return pid

    def request(self, command: str, **arguments: int) -> dict[str, Any]:
        """Send a command and return its answer. Raises AgentError if the agent refuses, AgentGone if it ends."""
        words = [f"offheap/{PROTOCOL}", command, *(f"{key}={value}" for key, value in arguments.items())]
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall((" ".join(words) + "\n").encode("ascii"))
            line = self._line(time.monotonic() + self._timeout)
        except socket.timeout as exc:
            raise AgentError(f"no answer to '{command}' from {self._agent.path} within {self._timeout:g} s") from exc
        except OSError as exc:
            raise AgentGone(f"{self._agent.path} broke the connection: {exc.strerror or exc}") from exc
        answer = _parse(line, self._agent.path)
        if answer.get("ok") is not True:
            why = str(answer.get("error", "refused"))[:1000]
            if why.startswith("commands: "):  # those that it knows
                why = "its agent is of an older release: enable_profiling brings the new one, and restarts the unit"
            raise AgentError(f"process {self._agent.pid}: {command}: {why}")
        return answer

    def _line(self, deadline: float) -> bytes:
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                raise socket.timeout
            self._socket.settimeout(left)
            part = self._socket.recv(65536)
            if not part:
                raise AgentGone(f"{self._agent.path} closed the connection without an answer")
            self._received += part
            if len(self._received) > _MAX_ANSWER:
                raise AgentError(f"{self._agent.path} sent more than any answer can hold")
        line, _newline, self._received = self._received.partition(b"\n")
        return line

    def dump(self, spool: str, command: str = "dump") -> WrittenDump:
        """Make the agent write a whole dump, by ``dump``, ``holders`` or ``trim``.

        Raises AgentError also if its path is not in ``spool``.
        """
        answer = self.request(command)
        path = answer.get("path")
        if not isinstance(path, str) or os.path.dirname(path) != spool or not dump_name.parse(os.path.basename(path)):
            raise AgentError(f"process {self._agent.pid} says that its dump is {path!r}, which is not in {spool}")
        return WrittenDump(
            path,
            _whole(answer, "size") or 0,
            float(answer["time"]) if values.is_time(answer.get("time")) else 0.0,
            _whole(answer, "sample_interval"),
            _whole(answer, "objects"),
            _whole(answer, "bytes"),
            _resident(answer, "before"),
            _resident(answer, "after"),
        )


def part(answer: dict[str, Any], key: str) -> dict[str, Any]:
    """The object with this key in an answer; an empty one if there is none."""
    value = answer.get(key)
    return value if isinstance(value, dict) else {}


def _resident(answer: dict[str, Any], key: str) -> int | None:
    return _whole(part(part(answer, key), "memory"), "rss")


def _whole(answer: dict[str, Any], key: str) -> int | None:
    value = answer.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _parse(line: bytes, path: str) -> dict[str, Any]:
    try:
        answer = values.parsed(line.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise AgentError(f"{path} does not answer in JSON: {line[:200]!r}") from exc
    if not isinstance(answer, dict) or answer.get("protocol") != PROTOCOL:
        raise AgentError(f"{path} does not speak protocol {PROTOCOL}: {line[:200]!r}")
    return answer
