# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""A session over the OpenSSH of an Ansible connection, which is handed in, so Ansible is not imported here.

Ansible offers no way to talk to a running command, so this takes the connection's own command line, which is private to
it. Everything that depends on that is in this file.
"""

from __future__ import annotations

import shlex
import tempfile
from typing import Any

from .host_session import HostSilent, PasswordRefused, ProcessStream, Session, SessionError, TerminalWanted, command

#: seconds of silence while ssh connects (it has its own limit) and sudo and Python start
_BEGIN_PATIENCE = 40.0
#: ssh's own exit status when there is no connection
_NO_CONNECTION = 255
_SUDO_FLAGS = "-H -S -n"
#: 30 s without an answer
_KEEP_ALIVE = "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"


class Unreachable(SessionError):
    """There is no connection to the host. The message is in Ansible's words."""


def prepare(connection: Any) -> None:
    """Make OpenSSH notice a host that has silently gone, and not compress what is compressed already.

    By default OpenSSH waits forever for such a host; settings of the user's take precedence. Ansible's own default is
    to compress (``-C``). A connection that is already open keeps its settings, so we share one with our own tasks only.
    """
    if connection.transport != "ssh":
        return
    options = ["ssh_args", "ssh_common_args", "ssh_extra_args"]
    texts = {option: str(connection.get_option(option) or "") for option in options}
    if not any("serveralive" in text.lower() for text in texts.values()):
        connection.set_option("ssh_common_args", f"{texts['ssh_common_args']} {_KEEP_ALIVE}".strip())
    if not connection.get_option("control_path"):
        where = (connection.get_option("host"), connection.get_option("port"), connection.get_option("remote_user"))
        connection.set_option("control_path", connection._create_control_path(*where, "offheap"))
    connection.set_option("ssh_args", shlex.join(word for word in shlex.split(texts["ssh_args"]) if word != "-C"))


def session(connection: Any, python: str) -> Session | None:
    """A session over the task's connection: cheaper than a module, which takes more CPU and a file on the host's disk.

    ``python`` is the host's interpreter. Returns None if only Ansible's own modules can work there, or if they may have
    more luck. Raises Unreachable, and PasswordRefused if sudo rejects the password.
    """
    return _begun(connection, python) if _is_plain(connection) else None


def _is_plain(connection: Any) -> bool:
    """Whether it is OpenSSH without a password, as the login user or through sudo with its default settings."""
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
    # Only the host's errors join its answers: what ssh itself says must not get between them.
    arguments = connection._build_command(
        executable, "ssh", connection.host, shlex.join(["/bin/sh", "-c", f"{line} 2>&1"])
    )
    with tempfile.TemporaryFile() as said:
        stream = ProcessStream(arguments, _BEGIN_PATIENCE, said)
        try:
            return Session(stream, ready, prompt, lambda: password)
        except PasswordRefused:
            raise
        except HostSilent as error:
            raise Unreachable(str(error)) from None
        except TerminalWanted:
            if connection.get_option("pipelining"):
                raise
            return None  # without pipelining, Ansible's modules have a terminal
        except SessionError as error:
            if stream.status != _NO_CONNECTION or connection.get_option("reconnection_retries"):
                return None  # the modules find another Python, report the error in Ansible's words, or try again
            said.seek(0)
            reason = said.read().decode("utf-8", "replace").strip() or error
            raise Unreachable(f"Failed to connect to the host via ssh: {reason}") from None
