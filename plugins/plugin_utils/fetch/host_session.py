# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A session with a host: our own target code, sent over a byte stream and run from memory, answers requests.

The console has one with each host; heap_fetch has one if Ansible's connection is OpenSSH.

The code is what the modules run (module_utils), sent as text by module name. The host's Python imports it from memory:
nothing is written to the host's disk, and everything ends with the stream.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import shlex
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from ...module_utils.formats import limits, wire
from ..base.errors import ControllerError
from ..base.printable import printable_lines

PACKAGE = "ansible_collections.offheap.profiler.plugins.module_utils"
_MODULE_UTILS = Path(__file__).resolve().parents[2] / "module_utils"
#: seconds without a sign of life after which a host counts as gone
_SILENCE = 6 * wire.BEAT
# Bytes per second: a host that sends its message one by one, each just in time, is none to wait for.
_SLOWEST = 1000
# A host may take this many times as long as it may work for a block, beyond what its blocks take at that speed.
_BLOCKS = 10
#: seconds until our code must run there, without those that a person takes to type the password
_BEGINNING = 120.0
#: the most bytes that a shell or sudo may print before our code does
_MAX_GREETING = 64 << 10
_PACKING = threading.Lock()
# A session leaves little garbage, and nothing to tidy up at its end.
_BOOTSTRAP = """
import gc, json, os, sys, zlib
from importlib.machinery import ModuleSpec
source, target = sys.stdin.buffer, sys.stdout.buffer
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
target.write(b"{ready}\\n"); target.flush()
code = json.loads(zlib.decompress(source.read(int(source.readline()))))
class Sent:
    def find_spec(name, path, target=None):
        if name in code: return ModuleSpec(name, Sent, is_package=code[name] is None)
    def create_module(spec): return None
    def exec_module(module): exec(compile(code[module.__name__] or "", module.__name__, "exec"), vars(module))
gc.set_threshold(100000)
sys.dont_write_bytecode = True
sys.meta_path.insert(0, Sent)
from {package}.session import server
server.serve(source, target)
os._exit(0)
"""


_ENDED = (
    "the connection ended before the answer: the host was shut down or rebooted, or sshd or our process there was"
    " killed. Run this again when it is up"
)
# Characters of a host's own words that are shown.
_LONGEST_SAID = 2000
T = TypeVar("T")


class SessionError(ControllerError):
    """The session could not start, has ended, or makes no sense. The message says which and what to do."""


class PasswordRefused(SessionError):
    """sudo rejected the password. Trying the same one again could lock the account."""


class TerminalWanted(SessionError):
    """sudo runs nothing without a terminal there."""


class HostSilent(SessionError):
    """Nothing has come from the host for longer than a living one is silent."""


class HostError(ControllerError):
    """The host understood the request but failed. The message is the host's."""


class Stream(Protocol):
    """A command running on a host: its standard input, and its standard output with errors mixed in."""

    def send(self, block: bytes) -> None:
        """Write all of it. Raises OSError."""

    def receive(self, most: int) -> bytes:
        """At least one byte and at most ``most``; nothing at the end. Raises OSError, including TimeoutError."""

    def set_timeout(self, seconds: float) -> None:
        """How long ``send`` and ``receive`` wait for the other end."""

    def close(self) -> None:
        """End the command."""


class ProcessStream:
    """A process on this machine. Standard error joins its output, unless ``errors`` takes it."""

    def __init__(self, arguments: Sequence[str | bytes], timeout: float, errors: IO[bytes] | None = None) -> None:
        """Raises OSError."""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout)
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(arguments, stdin=fd, stdout=fd, stderr=fd if errors is None else errors)

    @property
    def status(self) -> int | None:
        """The exit status of a process that has ended."""
        return self._process.returncode

    def send(self, block: bytes) -> None:
        self._socket.sendall(block)

    def receive(self, most: int) -> bytes:
        return self._socket.recv(most)

    def set_timeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closing alone would not end it while another thread still receives
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command(python: str, become: bool, become_user: str) -> tuple[str, str, str]:
    """(the shell's command line, the word that shows that our code runs, sudo's password prompt or "" without sudo)

    As for Ansible, ``python`` may be several words: ``/usr/bin/env python3``.
    """
    token = secrets.token_hex(8)
    ready, prompt = f"offheap-ready-{token}", f"offheap-password-{token}:" if become else ""
    # Isolated: the host's environment and site-packages do not belong in a process of root.
    # One line: a login shell of csh's family takes no line break within quotes.
    line = [*python.split(), "-IS", "-c", f"exec({_BOOTSTRAP.format(ready=ready, package=PACKAGE)!r})"]
    if become:
        line = ["sudo", "-S", "-p", prompt, "-u", become_user, "--", *line]
    return shlex.join(line), ready, prompt


def code() -> bytes:
    """The code to send to a host. Packed once, whichever thread asks first."""
    with _PACKING:
        return _code()


@functools.cache
def _code() -> bytes:
    """The modules of module_utils by name, and the packages above them as None: JSON, compressed for the way only."""
    code: dict[str, str | None] = {}
    for path in _MODULE_UTILS.rglob("*.py"):
        name = [*PACKAGE.split("."), *path.relative_to(_MODULE_UTILS).with_suffix("").parts]
        code.update((".".join(name[:length]), None) for length in range(1, len(name)))
        code[".".join(name)] = path.read_text(encoding="utf-8")
    return zlib.compress(json.dumps(code).encode("ascii"), 1)


class Session:
    """A running session. Use it as a context manager; the ``timeout`` of a request is in seconds of silence.

    ``password`` is asked for, and sent, only where the host says ``prompt``; never if that is empty.
    """

    def __init__(self, stream: Stream, ready: str, prompt: str, password: Callable[[], str | None]) -> None:
        self._stream = stream
        self._buffer = bytearray()
        try:
            self._begin(ready.encode(), prompt.encode(), password)
        except TimeoutError as error:
            self.close()
            raise HostSilent("the host took the connection and then said nothing. Is it overloaded or hung?") from error
        except OSError as error:
            self.close()
            raise SessionError(f"no session: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session. What runs on the host ends with its input."""
        self._stream.close()

    def _begin(self, ready: bytes, prompt: bytes, password: Callable[[], str | None]) -> None:
        """Wait until our code runs, give sudo its password if it asks, and send the rest of the code."""
        asked, deadline = 0, time.monotonic() + _BEGINNING
        while ready + b"\n" not in self._buffer:
            if prompt and self._buffer.count(prompt) > asked:
                asked += 1
                if asked > 1:
                    raise PasswordRefused("sudo rejected the password")
                secret = password()
                if secret is None:
                    raise SessionError(
                        "sudo wants a password and there is none: set ansible_become_password in the inventory, or run"
                        " this in a terminal, which asks for it"
                    )
                self._stream.send(secret.encode() + b"\n")
                deadline = time.monotonic() + _BEGINNING
            block = self._stream.receive(1 << 16)
            if not block or len(self._buffer) > _MAX_GREETING:
                raise _not_started(_said(bytes(self._buffer).replace(prompt, b"")))
            self._buffer += block
            if time.monotonic() > deadline:
                raise SessionError(
                    f"its Python has not started within {_BEGINNING:g} s; so far it said: {_said(bytes(self._buffer))}"
                )
        del self._buffer[: self._buffer.index(ready + b"\n") + len(ready) + 1]
        packed = code()
        self._stream.send(b"%d\n" % len(packed) + packed)

    def ask(
        self, what: str, timeout: float = 60.0, data: Callable[[bytes], None] | None = None, **request: Any
    ) -> dict[str, Any]:
        """The host's answer; data blocks that precede it go to ``data``. Raises SessionError, HostError.

        ``timeout`` limits how long the host may work without sending anything but signs of life.
        """
        self._stream.set_timeout(_SILENCE)
        begun, came = time.monotonic(), 0
        deadline = begun + timeout
        self._exchange(lambda: wire.write_message(self._stream.send, {"ask": what, **request}))
        while True:
            frame = self._exchange(lambda: wire.read(self._exactly, limits.LARGEST_MESSAGE))
            if frame is None:
                raise SessionError(_ENDED)
            if frame.message is not None:
                return self._answer(frame.message)
            if frame.data:
                if data is None:
                    raise SessionError("the host sent data without being asked")
                data(frame.data)
                came += len(frame.data)
                if time.monotonic() - begun > _BLOCKS * timeout + came / _SLOWEST:
                    raise SessionError(f"the host sends less than {_SLOWEST} bytes a second")
                deadline = time.monotonic() + timeout
            elif time.monotonic() > deadline:
                raise SessionError(f"the host lives, but has not answered for {timeout:g} s")

    def _exchange(self, act: Callable[[], T]) -> T:
        """Send or receive. Raises SessionError in the words of people."""
        try:
            return act()
        except wire.StreamEnded as error:
            raise SessionError(_ENDED) from error
        except wire.WireError as error:
            raise SessionError(f"the host broke the protocol: {error}") from error
        except TimeoutError as error:
            raise HostSilent(
                f"the host has been silent for {_SILENCE:g} s: it, or the network to it, is down. Run this again when"
                " it is back"
            ) from error
        except OSError as error:
            raise SessionError(f"the connection broke: {error.strerror or error}. Run this again") from error

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if isinstance(message.get("error"), str):
            raise HostError(printable_lines(message["error"][:_LONGEST_SAID]))
        answer = message.get("answer")
        if not isinstance(answer, dict):
            raise SessionError("the host broke the protocol: it sent neither an answer nor an error")
        return answer

    def _exactly(self, length: int) -> bytes:
        """Exactly ``length`` bytes, or fewer at the end of the stream."""
        came, begun = 0, time.monotonic()
        while len(self._buffer) < length:
            block = self._stream.receive(1 << 18)
            if not block:
                break
            self._buffer += block
            came += len(block)
            if time.monotonic() - begun > _SILENCE + came / _SLOWEST:
                raise SessionError(f"the host sends less than {_SLOWEST} bytes a second within a message")
        found = bytes(self._buffer[:length])
        del self._buffer[:length]
        return found


def _not_started(said: str) -> SessionError:
    """Why our code did not start, from what the host printed instead."""
    if "must have a tty" in said:
        return TerminalWanted(
            "sudo there wants a terminal (requiretty), and a session has none. Exempt the login user in sudoers with"
            " 'Defaults:USER !requiretty', or let playbooks do it without pipelining (ANSIBLE_PIPELINING=false)"
        )
    return SessionError(
        f"its Python did not start: {said}. It needs Python 3.8 or later; ansible_python_interpreter in the inventory"
        " says which"
    )


def _said(output: bytes) -> str:
    lines = [
        line for line in printable_lines(output.decode("utf-8", "replace")[:_LONGEST_SAID]).splitlines() if line.strip()
    ]
    return " / ".join(lines[-3:]) or "it said nothing"
