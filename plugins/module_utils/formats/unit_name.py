# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Names of services: one grammar for what users type, what hosts report and what directories are called.

It is systemd's (systemd.unit(5)), without names that are unsafe as a directory or an argument: those that begin with a
dot or a hyphen, and those too long for a drop-in directory ``<unit>.d``.

This module is private to the collection.
"""

from __future__ import annotations

import re

from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

_SUFFIX = ".service"
_OTHER_TYPE = re.compile(r"\.(?:socket|target|timer|mount|automount|swap|path|slice|scope|device)\Z")
_SERVICE = re.compile(r"[A-Za-z0-9:_\\][A-Za-z0-9:_.\\@-]{0,244}\.service\Z")


class UnitNameError(OffheapError):
    """Something is not the name of a service. The message says what to write instead, if that is clear."""


def is_service(name: object) -> bool:
    """Whether this is the full name of a service that can run: with ``.service``, and not a bare template."""
    return isinstance(name, str) and bool(_SERVICE.match(name)) and not name.endswith("@.service")


def service(name: str) -> str:
    """The full name of a service, with ``.service`` added if the user left it out. Raises UnitNameError.

    >>> service("frontend")
    'frontend.service'
    """
    full = name if name.endswith(_SUFFIX) or _OTHER_TYPE.search(name) else name + _SUFFIX
    if is_service(full):
        return full
    if _SERVICE.match(full):
        example = full[: -len(_SUFFIX)] + "main" + _SUFFIX
        raise UnitNameError(f"{full} is a template: name one of its instances, such as {example}")
    raise UnitNameError(f"{name[:300]!r} is not the name of a service unit")
