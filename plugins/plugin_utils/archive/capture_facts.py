# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The format of capture.json, and the check that everything passes before it is believed.

Format 1: C(format), C(host), C(unit), C(dump) {name, size, sha256, time}, C(process) {pid, key, boot_id, start_time,
exe, cmdline} and C(images) [{path, build_id, size}]. Times are seconds since the epoch, sizes bytes. An image without
a build-id has a C(reason) instead. Where the agent has left a sidecar, C(agent) has what sidecar.py keeps of it, or
C(problem). Where a perf map was asked for, C(perf_map) has its C(source) or the C(problem). C(label) is what whoever
collected says of the version that ran. A reader passes over keys that it does not know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from ...module_utils.spool import directory, dump

FORMAT = 1
_MAX_TEXT = 16384
_MAX_IMAGES = 65536
_KEY = re.compile(r"([0-9]{1,10})-[0-9a-f]{8}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_BUILD_ID = re.compile(r"(?:[0-9a-f]{2}){4,64}\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BOOT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


class ArchiveError(Exception):
    """The archive, or something that is to go into it, is not as it must be. The message says what and where."""


def is_build_id(value: object) -> bool:
    """Lower-case hex of 4 to 64 bytes."""
    return isinstance(value, str) and bool(_BUILD_ID.match(value))


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        return False
    return not _SURROGATE.search(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _matches(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and bool(pattern.match(value))


def _optional(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_TEXT and all(item == "" or _is_text(item) for item in value)


def _is_unit(value: object) -> bool:
    try:
        return isinstance(value, str) and directory.check_unit(value) == value
    except directory.SpoolError:
        return False


_DUMP: dict[str, Callable[[object], bool]] = {
    "name": lambda value: isinstance(value, str) and dump.parse_name(value) is not None,
    "size": _is_count,
    "sha256": _matches(_SHA256),
    "time": _is_time,
}
_PROCESS: dict[str, Callable[[object], bool]] = {
    "pid": _is_count,
    "key": _matches(_KEY),
    "boot_id": _optional(_matches(_BOOT_ID)),
    "start_time": _optional(_is_time),
    "exe": _optional(_is_text),
    "cmdline": _optional(_is_texts),
}
_IMAGE: dict[str, Callable[[object], bool]] = {
    "path": _is_text,
    "build_id": _optional(is_build_id),
    "size": _optional(_is_count),
}


def _check_part(name: str, part: object, fields: dict[str, Callable[[object], bool]]) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise ArchiveError(f"{name} is not a mapping")
    for field, is_right in fields.items():
        if field not in part or not is_right(part[field]):
            raise ArchiveError(f"{name}.{field} is not what it must be: {str(part.get(field, 'missing'))[:100]!r}")
    return part


def check(facts: object) -> dict[str, Any]:
    """The facts, when they have the form of a capture.json. Raises ArchiveError that names the first wrong field."""
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ArchiveError(f"the facts of the capture are not of format {FORMAT}, the one that this version knows")
    if not _is_text(facts.get("host")) or not _is_unit(facts.get("unit")):
        raise ArchiveError("the facts of the capture name no host or no unit")
    if not _optional(_is_text)(facts.get("label")):
        raise ArchiveError("the label of the capture is not a text")
    named = _check_part("dump", facts.get("dump"), _DUMP)
    process = _check_part("process", facts.get("process"), _PROCESS)
    parts = dump.parse_name(named["name"])
    if parts is None or process["key"].split("-")[0] != str(process["pid"]) or process["pid"] != parts.pid:
        raise ArchiveError("the process of the capture is not the one in the dump's name")
    images = facts.get("images")
    if not isinstance(images, list) or len(images) > _MAX_IMAGES:
        raise ArchiveError("images is not a list of a possible length")
    for image in images:
        _check_part("image", image, _IMAGE)
        if image["build_id"] is not None and image["size"] is None:
            raise ArchiveError("image.size is missing")
        if image["build_id"] is None and not _is_text(image.get("reason")):
            raise ArchiveError("an image has neither build-id nor reason")
    return facts
