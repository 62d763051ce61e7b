# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Our files beside a unit: written and removed whole, each change recorded for check and diff mode."""

from __future__ import annotations

import os
import tempfile
from typing import Callable, NamedTuple

from ansible_collections.offheap.profiler.plugins.module_utils.formats import command_line
from ansible_collections.offheap.profiler.plugins.module_utils.host import places, systemd
from ansible_collections.offheap.profiler.plugins.module_utils.unit import drop_in, preflight
from ansible_collections.offheap.profiler.plugins.module_utils.unit.changes import Changes

_TEMPORARY = ".90-offheap-"


class WantedFiles(NamedTuple):
    """What must be on the target for one unit. ``owner`` is None if systemd makes the spool."""

    directory: str
    injection: drop_in.Injection
    spool: str
    owner: preflight.Owner | None


def installed(unit: str) -> list[str]:
    """Our drop-ins of a unit, in both places; also one of which a broken run left only other files."""
    where = [places.drop_ins_of(unit, until_reboot) for until_reboot in (False, True)]
    return [f"{place}/{drop_in.NAME}" for place in where if any(map(_is_ours, _names(place)))]


def _is_ours(name: str) -> bool:
    return name in (drop_in.NAME, drop_in.ENVIRONMENT_NAME) or name.startswith(_TEMPORARY)


def _names(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except FileNotFoundError:
        return []


def write(changes: Changes, unit: str, wanted: WantedFiles) -> None:
    """Bring our files into the wanted state, and remove any drop-in from the other place.

    The environment file comes first: a drop-in that names a missing one would keep the unit from starting.
    """
    made_here = not os.path.isdir(wanted.directory)
    record_path = f"{wanted.directory}/{drop_in.NAME}"
    record = {"made_directory": made_here or drop_in.read_record(record_path).get("made_directory", False)}
    _set(changes, f"{wanted.directory}/{drop_in.ENVIRONMENT_NAME}", wanted.injection.environment_file)
    _set(changes, record_path, wanted.injection.text(record))
    for path in installed(unit):
        if path != record_path:
            _remove_pair(changes, os.path.dirname(path))


def remove(changes: Changes, unit: str) -> None:
    """Remove our files of a unit, and the directory if we made it and nothing else is in it."""
    for path in installed(unit):
        _remove_pair(changes, os.path.dirname(path))


def _remove_pair(changes: Changes, where: str) -> None:
    record = drop_in.read_record(f"{where}/{drop_in.NAME}")
    names = _names(where)
    # The drop-in first: it names the environment file, without which the unit would not start.
    for name in sorted(filter(_is_ours, names), key=lambda name: name != drop_in.NAME):
        _set(changes, f"{where}/{name}", None)
    if record.get("made_directory", False) and all(map(_is_ours, names)):
        changes.do(lambda: os.rmdir(where))


def _set(changes: Changes, path: str, text: str | None) -> None:
    """Make a file hold ``text``, or remove it if that is None. Only root may read any but the drop-in itself."""
    private = os.path.basename(path) != drop_in.NAME
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
    os.makedirs(where, mode=0o755, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=where)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
