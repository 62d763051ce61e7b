# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A session over the connection that Ansible has with a task's host, where that is OpenSSH.

A module costs a host a quarter of a second of its processor and the controller a round trip, and what it makes has to
be fetched from the host's disk. A session starts one Python, and streams.
"""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator
from typing import Any

from .session import PasswordRefused, ProcessStream, Session, SessionError, command

#: seconds without a word while ssh connects (it has its own limit) and sudo and Python begin
_PATIENCE = 60.0
#: ssh's own exit status when there is no connection
_NO_CONNECTION = 255
_SUDO_FLAGS = "-H -S -n"
#: 30 s without an answer
_KEEP_ALIVE = "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"


class NoConnection(Exception):
    """ssh did not get to the host. The message is ssh's."""


def prepare(connection: Any) -> None:
    """Let OpenSSH notice a host that is gone without a word, and not compress what is compressed already.

    By itself it waits for ever for more to come, and what the user has said of that stays. Ansible's own default is to
    compress (C(-C)); it has its effect where no earlier task has opened the connection.
    """
    if connection.transport != "ssh":
        return
    options = ["ssh_args", "ssh_common_args", "ssh_extra_args"]
    texts = {option: str(connection.get_option(option) or "") for option in options}
    if not any("serveralive" in text.lower() for text in texts.values()):
        connection.set_option("ssh_common_args", f"{texts['ssh_common_args']} {_KEEP_ALIVE}".strip())
    connection.set_option("ssh_args", shlex.join(word for word in shlex.split(texts["ssh_args"]) if word != "-C"))


@contextlib.contextmanager
def session(connection: Any, python: str) -> Iterator[Session | None]:
    """The session; None where it needs what only Ansible's own modules can, or where they may have more luck.

    C(connection) is the task's, C(python) the host's interpreter. Raises NoConnection, and PasswordRefused
    when sudo does not take the password.
    """
    with contextlib.ExitStack() as stack:
        begun = _begun(connection, python) if _is_plain(connection) else None
        if begun is not None:
            stack.enter_context(begun)
        yield begun


def _is_plain(connection: Any) -> bool:
    """OpenSSH without a password, and nobody else than the login user, or sudo as it is by default."""
    if connection.transport != "ssh" or connection.get_option("password") or connection._play_context.password:
        return False
    become = connection.become
    return become is None or (
        become.name == "sudo"
        and become.get_option("become_exe") == "sudo"
        and become.get_option("become_flags") == _SUDO_FLAGS
    )


def _begun(connection: Any, python: str) -> Session | None:
    become = connection.become
    user, password = (become.get_option(name) if become else None for name in ("become_user", "become_pass"))
    line, ready, prompt = command(python, become is not None, user or "root")
    connection.host = connection.get_option("host")
    executable = connection.get_option("ssh_executable")
    # What ssh itself says must not get between the answers, so only the host's errors are in them.
    arguments = connection._build_command(executable, "ssh", connection.host, f"{line} 2>&1")
    with tempfile.TemporaryFile() as said:
        stream = ProcessStream(arguments, _PATIENCE, said)
        try:
            return Session(stream, ready, prompt, lambda: password)
        except PasswordRefused:
            raise
        except SessionError as error:
            if stream.status != _NO_CONNECTION or connection.get_option("reconnection_retries"):
                return None  # the modules find another Python, say what is wrong in Ansible's words, or try again
            said.seek(0)
            reason = said.read().decode("utf-8", "replace").strip() or error
            raise NoConnection(f"Failed to connect to the host via ssh: {reason}") from error
