# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""What the agent writes beside a dump, ``<dump>.json``: read, checked, and reduced to what a capture keeps.

The file belongs to the service's user, who may have put anything there. So process, images and times are not taken
from it, but determined independently.

This module is private to the collection.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, limits, values
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

FORMAT = 1
_MAX_TEXT = 4096
_MAX_KEYS = 64
_MAX_OTHERS = 4
_MAX_REUSED = 64
_RANGE = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})\Z")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")


class SidecarError(OffheapError):
    """The sidecar does not belong to this dump, or is not in the agent's format. The message says what is wrong."""


@dataclass(frozen=True)
class JemallocFacts:
    """The allocator of a process: its release, the text that configured it, and the options in force."""

    version: str | None
    malloc_conf: str | None
    options: dict[str, Any]


@dataclass(frozen=True)
class OtherFacts:
    """Another process of the unit, without a profile. ``rss`` is its memory without files, in bytes; ``exe`` is None
    where it is another user's."""

    pid: int
    name: str | None
    rss: int
    exe: str | None = None


@dataclass(frozen=True)
class OthersFacts:
    """All other processes of the unit without a profile: how many, their memory in bytes, and the largest of them."""

    processes: int
    rss: int
    largest: list[OtherFacts]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "largest": [vars(one) for one in self.largest]}

    @classmethod
    def from_json(cls, found: Any) -> OthersFacts | None:
        """Check and read them; None where they are not known. Raises SidecarError."""
        if found is None:
            return None
        _must("others", isinstance(found, dict) and set(found) == set(cls.__annotations__))
        _must("others.processes", values.is_size(found["processes"]))
        _must("others.rss", values.is_size(found["rss"]))
        largest = found["largest"]
        _must("others.largest", isinstance(largest, list) and len(largest) <= _MAX_OTHERS)
        for one in largest:
            _must("others.largest", isinstance(one, dict) and {"exe", *one} == set(OtherFacts.__annotations__))
            _must("others.largest", values.is_size(one["pid"]) and values.is_size(one["rss"]))
            for text in (one["name"], one.get("exe")):
                _must("others.largest", text is None or _is_text(text))
        return cls(found["processes"], found["rss"], [OtherFacts(**one) for one in largest])


@dataclass(frozen=True)
class AgentFacts:
    """What the agent knows about a dump.

    ``version`` is the agent's, ``reason`` why it dumped, ``duration`` how long that took in seconds; ``active_since``
    is in seconds since the epoch. ``memory`` has jemalloc's statistics at the time, in bytes. ``others`` is None where
    it is not known, as from an agent before 1.0. ``reused`` are ranges of addresses ("start-end", hexadecimal) of code
    where another file's lay earlier: an address in a stack may be of either. ``pid_namespace`` is the number of that in
    which the process has the pid in the dump's name; 0 where it is not known.
    """

    version: str | None
    reason: str | None
    unwinder: str | None
    active: bool | None
    active_since: float | None
    duration: float | None
    memory: dict[str, int]
    jemalloc: JemallocFacts
    others: OthersFacts | None = None
    reused: list[str] = field(default_factory=list)
    pid_namespace: int = 0

    def to_json(self) -> dict[str, Any]:
        """As stored in a capture's facts; the reverse of ``from_json``."""
        others = self.others and self.others.to_json()
        return {**vars(self), "jemalloc": vars(self.jemalloc), "others": others}

    @classmethod
    def from_json(cls, found: Any) -> AgentFacts:
        """Check and read the facts, as both ends do where facts enter. Raises SidecarError."""
        if not isinstance(found, dict) or not isinstance(found.get("jemalloc"), dict):
            raise SidecarError("it is not a mapping that contains jemalloc")
        found = {"others": None, "reused": [], "pid_namespace": 0, **found}
        if set(found) != set(cls.__annotations__):
            raise SidecarError("it does not have the expected fields")
        jemalloc = found["jemalloc"]
        if set(jemalloc) != set(JemallocFacts.__annotations__):
            raise SidecarError("jemalloc does not have the expected fields")
        for key in ("version", "reason", "unwinder"):
            _must(key, found[key] is None or _is_text(found[key]))
        for key in ("version", "malloc_conf"):
            _must(f"jemalloc.{key}", jemalloc[key] is None or _is_text(jemalloc[key]))
        _must("active", found["active"] is None or isinstance(found["active"], bool))
        for key in ("active_since", "duration"):
            _must(key, found[key] is None or values.is_number(found[key]))
        _must("memory", _is_mapping(found["memory"], values.is_size))
        _must("jemalloc.options", _is_mapping(jemalloc["options"], _is_option))
        reused = found["reused"]
        _must("reused", isinstance(reused, list) and len(reused) <= _MAX_REUSED)
        _must("reused", all(isinstance(one, str) and _RANGE.match(one) for one in reused))
        _must("pid_namespace", values.is_size(found["pid_namespace"]))
        others = OthersFacts.from_json(found["others"])
        return cls(**{**found, "jemalloc": JemallocFacts(**jemalloc), "others": others})


def read(fd: int, name: str, size: int) -> AgentFacts:
    """Read an open sidecar of the dump with this name and size. Raises SidecarError."""
    text = os.pread(fd, limits.LARGEST_SIDECAR + 1, 0)
    if len(text) > limits.LARGEST_SIDECAR:
        raise SidecarError(f"it is larger than {limits.LARGEST_SIDECAR} bytes")
    try:
        found = values.parsed(text.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise SidecarError(f"it is not JSON: {type(exc).__name__}") from exc
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SidecarError(f"it is not of format {FORMAT}")
    parts = dump_name.parse(name)
    if (found.get("dump"), found.get("size"), found.get("pid")) != (name, size, parts and parts.pid):
        raise SidecarError("it is about another dump")
    jemalloc = found.get("jemalloc")
    if not isinstance(jemalloc, dict):
        raise SidecarError("jemalloc is not a mapping")
    options = jemalloc.get("options")
    if not isinstance(options, dict):
        raise SidecarError("jemalloc.options is not a mapping")
    return AgentFacts.from_json(
        {
            "version": _short(found.get("agent")),
            **{key: _short(found.get(key)) for key in ("reason", "unwinder")},
            **{key: found.get(key) for key in ("active", "active_since", "duration", "memory")},
            "others": _with_short_names(found.get("others")),
            "reused": found.get("reused", []),
            "pid_namespace": found.get("pid_namespace", 0),
            "jemalloc": {
                **{key: _short(jemalloc.get(key)) for key in ("version", "malloc_conf")},
                "options": {key: _short(value) for key, value in options.items()},
            },
        }
    )


def range_of(text: str) -> tuple[int, int]:
    """The start and the end of one of ``AgentFacts.reused``."""
    start, _dash, end = text.partition("-")
    return int(start, 16), int(end, 16)


def _short(value: Any) -> Any:
    """Make a text valid UTF-8. JSON can hold any surrogate, but ``values.clean`` takes only those of os.fsdecode."""
    if not isinstance(value, str):
        return value
    return values.clean(re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", value), _MAX_TEXT)


def _with_short_names(others: Any) -> Any:
    """The same with names that are valid UTF-8; what has not the expected form is left to OthersFacts."""
    if not isinstance(others, dict) or not isinstance(others.get("largest"), list):
        return others
    largest = [
        {**one, **{key: _short(one[key]) for key in ("name", "exe") if key in one}} if isinstance(one, dict) else one
        for one in others["largest"]
    ]
    return {**others, "largest": largest}


def _must(name: str, right: bool) -> None:
    if not right:
        raise SidecarError(f"{name} is invalid")


def _is_text(value: Any) -> bool:
    return values.is_text(value, _MAX_TEXT)


def _is_option(value: Any) -> bool:
    return value is None or isinstance(value, bool) or values.is_number(value) or _is_text(value)


def _is_mapping(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_KEYS
        and all(isinstance(key, str) and _KEY.match(key) and is_right(item) for key, item in value.items())
    )
