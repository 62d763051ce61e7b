# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A session over the OpenSSH of an Ansible connection, which is handed in: Ansible itself is not needed here.

Ansible offers no way to talk with a command that runs, so this takes the connection's own command line, which is
private to it. All that depends on that is in this file.
"""

from __future__ import annotations

import shlex
import tempfile
from typing import Any

from .host_session import PasswordRefused, ProcessStream, Session, SessionError, command

#: seconds without a word while ssh connects (it has its own limit) and sudo and Python begin
_BEGIN_PATIENCE = 60.0
#: ssh's own exit status when there is no connection
_NO_CONNECTION = 255
_SUDO_FLAGS = "-H -S -n"
#: 30 s without an answer
_KEEP_ALIVE = "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"


class Unreachable(SessionError):
    """There is no connection to the host. The message is in Ansible's words."""


def prepare(connection: Any) -> None:
    """Let OpenSSH notice a host that is gone without a word, and not compress what is compressed already.

    By itself it waits for ever for more to come, and what the user has said of that stays. Ansible's own default is to
    compress (``-C``); it has its effect where no earlier task has opened the connection.
    """
    if connection.transport != "ssh":
        return
    options = ["ssh_args", "ssh_common_args", "ssh_extra_args"]
    texts = {option: str(connection.get_option(option) or "") for option in options}
    if not any("serveralive" in text.lower() for text in texts.values()):
        connection.set_option("ssh_common_args", f"{texts['ssh_common_args']} {_KEEP_ALIVE}".strip())
    connection.set_option("ssh_args", shlex.join(word for word in shlex.split(texts["ssh_args"]) if word != "-C"))


def session(connection: Any, python: str) -> Session | None:
    """A session over the task's connection. A module costs a host more of its processor, and a file on its disk.

    ``python`` is the host's interpreter. It is None where it needs what only Ansible's own modules can, or where they
    may have more luck. Raises Unreachable, and PasswordRefused when sudo does not take the password.
    """
    return _begun(connection, python) if _is_plain(connection) else None


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
        stream = ProcessStream(arguments, _BEGIN_PATIENCE, said)
        try:
            return Session(stream, ready, prompt, lambda: password)
        except PasswordRefused:
            raise
        except SessionError as error:
            if stream.status != _NO_CONNECTION or connection.get_option("reconnection_retries"):
                return None  # the modules find another Python, say what is wrong in Ansible's words, or try again
            said.seek(0)
            reason = said.read().decode("utf-8", "replace").strip() or error
            raise Unreachable(f"Failed to connect to the host via ssh: {reason}") from None
