# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the agent writes beside a dump, C(<dump>.json): read, checked, and reduced to what a capture keeps.

The file belongs to the service's user, who may have put anything there. Process, images and times are not taken from
it: those are found out without it.

This module is private to the collection.
"""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils.spool import dump, provenance

FORMAT = 1
_MAX_BYTES = 1 << 20
_MAX_TEXT = 4096
_MAX_KEYS = 64
_KEY = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_TEXTS = ("reason", "unwinder")
_JEMALLOC_TEXTS = ("version", "malloc_conf")


class SidecarError(Exception):
    """The sidecar is not one of this dump, or not as the agent writes it. The message says what is wrong."""


def read(fd: int, name: str, size: int) -> dict[str, Any]:
    """The facts in an open sidecar of the dump with this name and size. Raises SidecarError."""
    text = os.pread(fd, _MAX_BYTES + 1, 0)
    if len(text) > _MAX_BYTES:
        raise SidecarError(f"it is larger than {_MAX_BYTES} bytes")
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise SidecarError(f"it is not JSON: {type(exc).__name__}") from exc
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SidecarError(f"it is not of format {FORMAT}")
    parts = dump.parse_name(name)
    if (found.get("dump"), found.get("size"), found.get("pid")) != (name, size, parts and parts.pid):
        raise SidecarError("it is about another dump")
    jemalloc = found.get("jemalloc")
    if not isinstance(jemalloc, dict):
        raise SidecarError("jemalloc is not a mapping")
    reduced: dict[str, Any] = {"version": _short(found.get("agent"))}
    reduced.update((key, _short(found.get(key))) for key in _TEXTS)
    reduced.update((key, found.get(key)) for key in ("active", "active_since", "duration", "memory"))
    reduced["jemalloc"] = {key: _short(jemalloc.get(key)) for key in _JEMALLOC_TEXTS}
    options = jemalloc.get("options")
    if not isinstance(options, dict):
        raise SidecarError("jemalloc.options is not a mapping")
    reduced["jemalloc"]["options"] = {key: _short(value) for key, value in options.items()}
    return check(reduced)


def _short(value: Any) -> Any:
    """Texts as UTF-8 can have them. JSON can hold any surrogate, ``capture.clean`` wants those of os.fsdecode only."""
    if not isinstance(value, str):
        return value
    return provenance.clean(re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", value), _MAX_TEXT)


def check(facts: Any) -> dict[str, Any]:
    """The facts, if they are as C(read) returns them; both ends ask. Raises SidecarError."""
    if not isinstance(facts, dict) or not isinstance(facts.get("jemalloc"), dict):
        raise SidecarError("it is not a mapping with jemalloc in it")
    if set(facts) != {"version", *_TEXTS, "active", "active_since", "duration", "memory", "jemalloc"}:
        raise SidecarError("it has other fields than it must have")
    jemalloc = facts["jemalloc"]
    if set(jemalloc) != {*_JEMALLOC_TEXTS, "options"}:
        raise SidecarError("jemalloc has other fields than it must have")
    for key, value in [("version", facts["version"]), *((key, facts[key]) for key in _TEXTS)]:
        _must(key, value is None or _is_text(value))
    for key in _JEMALLOC_TEXTS:
        _must(f"jemalloc.{key}", jemalloc[key] is None or _is_text(jemalloc[key]))
    _must("active", facts["active"] is None or isinstance(facts["active"], bool))
    for key in ("active_since", "duration"):
        _must(key, facts[key] is None or _is_number(facts[key]))
    _must("memory", _is_mapping(facts["memory"], lambda value: _is_whole(value) and value >= 0))
    _must("jemalloc.options", _is_mapping(jemalloc["options"], _is_option))
    return facts


def _must(name: str, right: bool) -> None:
    if not right:
        raise SidecarError(f"{name} is not what it must be")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_option(value: Any) -> bool:
    return value is None or isinstance(value, bool) or _is_number(value) or _is_text(value)


def _is_mapping(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_KEYS
        and all(isinstance(key, str) and _KEY.match(key) and is_right(item) for key, item in value.items())
    )
