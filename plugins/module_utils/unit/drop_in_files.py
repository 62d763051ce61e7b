# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Our files beside a unit: written and removed whole, each change recorded for check and diff mode."""

from __future__ import annotations

import os
import tempfile
from typing import Callable, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import command_line
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in, programs
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes
from ansible_collections.offheap.profiler.plugins.module_utils.unit.refusal import UnitError
from ansible_collections.offheap.profiler.plugins.module_utils.unit.service import Service

_TEMPORARY = ".90-offheap-"


class WantedFiles(NamedTuple):
    """What must be on the target for one unit. ``writers`` of dumps are users, the spool's owner first; none if systemd
    makes the spool."""

    directory: str
    injection: drop_in.Injection
    spool: str
    writers: list[programs.Owner]

    @property
    def drop_in(self) -> str:
        """Path of the drop-in."""
        return f"{self.directory}/{drop_in.NAME}"


def installed(unit: str) -> list[str]:
    """Our drop-ins of a unit, in both places; also one of which a broken run left only other files."""
    return [f"{place}/{drop_in.NAME}" for place in _places(unit) if any(map(_is_ours, names(place)))]


def _places(unit: str) -> list[str]:
    return [places.drop_ins_of(unit, until_reboot) for until_reboot in (False, True)]


def _is_ours(name: str) -> bool:
    return name in (drop_in.NAME, drop_in.ENVIRONMENT_NAME, drop_in.CONTAINER_NAME) or name.startswith(_TEMPORARY)


def names(place: str) -> list[str]:
    """What is in a directory; nothing if there is none."""
    try:
        return os.listdir(place)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write(changes: Changes, unit: str, wanted: WantedFiles) -> None:
    """Bring our files into the wanted state, and remove any drop-in from the other place.

    The files that it names come first, and those that it no longer names go after it: a drop-in that names a missing
    one would keep the unit from starting.
    """
    made_here = not os.path.isdir(wanted.directory)
    record = {"made_directory": made_here or _is_our_directory(wanted.directory, places.sockets_of(unit))}
    texts = {
        drop_in.ENVIRONMENT_NAME: wanted.injection.environment_file,
        drop_in.CONTAINER_NAME: wanted.injection.container,
        drop_in.NAME: wanted.injection.text(record),
    }
    for name, text in sorted(texts.items(), key=lambda item: item[1] is None):
        _set(changes, f"{wanted.directory}/{name}", text)
    for path in installed(unit):
        if path != wanted.drop_in:
            _remove_all(changes, os.path.dirname(path))


def remove(changes: Changes, unit: str) -> None:
    """Remove our files of a unit, and the directory if we made it and nothing else is in it."""
    for where in _places(unit):
        _remove_all(changes, where, places.spool_of(unit), places.sockets_of(unit))


def _remove_all(changes: Changes, where: str, *traces: str) -> None:
    found = names(where)
    empty_then = os.path.isdir(where) and all(map(_is_ours, found)) and _is_our_directory(where, *traces)
    # The drop-in first: it names the others, without which the unit would not start.
    for name in sorted(filter(_is_ours, found), key=lambda name: name != drop_in.NAME):
        _set(changes, f"{where}/{name}", None)
    if empty_then:
        changes.do(lambda: os.rmdir(where))


def _is_our_directory(where: str, *traces: str) -> bool:
    """Whether we made the directory of a drop-in.

    The drop-in says so itself. If somebody has edited or deleted it, other files of ours there, or the ``traces`` of
    the unit's profiling elsewhere, say so instead.
    """
    found = any(map(_is_ours, names(where))) or any(map(os.path.lexists, traces))
    return bool(drop_in.read_record(f"{where}/{drop_in.NAME}").get("made_directory", found))


def reload(changes: Changes, unit: Service) -> None:
    """Let systemd read what this run changed, or an earlier one that did not get this far."""
    if changes.units or is_to_be_read(unit):
        changes.do(lambda: systemd.systemctl("daemon-reload"))


def is_to_be_read(unit: Service) -> bool:
    """Whether systemd has yet to read what a run of ours has changed, which did not get that far."""
    ours = any(map(drop_in.is_ours, unit.drop_ins)) or bool(installed(unit.name))
    return unit.text["NeedDaemonReload"] == "yes" and ours


def _set(changes: Changes, path: str, text: str | None) -> None:
    """Make a file hold ``text``, or remove it if that is None. Only root may read the environment file."""
    private = os.path.basename(path) == drop_in.ENVIRONMENT_NAME
    before = _read(path)
    exposed = private and before is not None and bool(os.lstat(path).st_mode & 0o077)
    if before == text and not exposed and (text is not None or not os.path.islink(path)):
        return
    changes.units = True
    changes.note(path, *_to_show(_names_in if private else _without_secrets, before, text, exposed))
    changes.do(lambda: os.unlink(path) if text is None else _replace(path, text, 0o600 if private else 0o644))


def _to_show(shown: Callable[[str], str], before: str | None, after: str | None, exposed: bool) -> tuple[str, str]:
    """What a diff may show of a change. It shows that there is one, also where it is in a secret."""
    first, second = ("" if text is None else shown(text) for text in (before, after))
    if exposed:
        first += "other users may read it\n"
    return first, second + "with other values\n" if first == second else second


def _without_secrets(text: str) -> str:
    return "\n".join(map(command_line.without_secret, text.split("\n")))


def _names_in(text: str) -> str:
    try:
        names = ", ".join(systemd.parse_environment_file(text))
    except systemd.SystemdError:
        names = "what systemd cannot read"
    return f"sets {names or 'nothing'} (values are not shown)\n"


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _replace(path: str, text: str, mode: int) -> None:
    where = os.path.dirname(path)
    made_here = not os.path.isdir(where)
    try:
        if made_here:
            places.make(where)
        _write(path, text, mode)
    except OSError as error:
        if made_here and os.path.isdir(where):
            os.rmdir(where)
        raise UnitError(f"{path} cannot be written: {error.strerror}. Correct that and run this again") from error


def _write(path: str, text: str, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
