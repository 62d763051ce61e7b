# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The facts of a capture, as capture.json holds them, and the checks they must pass before anything trusts them.

Format 2: ``format``, ``host``, ``unit``, ``dump`` {name, size, sha256, time}, ``process`` {pid, key, boot_id,
start_time, exe, cmdline}, ``images`` [{path, build_id, size, sha256}], ``source`` (what made the dump), ``measure``
(what its numbers mean) and ``sampling`` {scheme, interval}. Times are seconds since the epoch, sizes bytes. An image
without a build-id has a ``reason`` instead; one whose file nobody has looked at has no ``sha256``. If the agent left a
sidecar, ``agent`` holds what sidecar.py keeps of it, or a ``problem``. If a perf map was requested, ``perf_map`` holds
its ``source`` or the ``problem``. ``label`` is the collecting user's name for the version that ran. Readers ignore
unknown keys, but keep them.

Format 1 has no source, measure or sampling: the dump is jemalloc's, its numbers are live, and it says itself how it
was sampled.

This module is private to the collection.
"""

from __future__ import annotations

import functools
import re
import reprlib
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from ansible_collections.offheap.profiler.plugins.module_utils.formats import dump_name, sidecar, unit_name
from ansible_collections.offheap.profiler.plugins.module_utils.formats.errors import OffheapError

FORMAT = 2
JEMALLOC, ASYNC_PROFILER, LIVE = "jemalloc", "async-profiler", "live"
MEASURES = (LIVE, "allocated", "grown")
#: whether a sampling has an interval, by scheme
SCHEMES = {"poisson": True, "systematic": True, "exact": False, "unknown": False}
#: how many bytes at a dump's start say how it was sampled
HEAD = 64

_MAX_TEXT = 16384
_MAX_IMAGES = 65536
# Characters of all paths of images together. A process with 2,000 libraries has some 200,000.
_MAX_SUM = 4 << 20
_KEY = re.compile(r"([0-9]{1,10})-[0-9a-f]{8}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_BUILD_ID = re.compile(r"(?:[0-9a-f]{2}){4,64}\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BOOT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_SOURCE = re.compile(r"[a-z][a-z0-9-]{0,39}\Z")
_HEAP_V2 = re.compile(rb"heap_v2/([0-9]{1,18})\n")

_Check = Callable[[object], bool]


class CaptureFactsError(OffheapError):
    """A capture's facts are malformed. The message names the first wrong field."""


@dataclass(frozen=True)
class DumpFacts:
    """The dump's file. ``time`` is when it was written."""

    name: str
    size: int
    sha256: str
    time: float
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ProcessFacts:
    """The process. ``key`` distinguishes it from others with its pid. If it has ended, what only it knew is None."""

    pid: int
    key: str
    boot_id: str | None = None
    start_time: float | None = None
    exe: str | None = None
    cmdline: tuple[str, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class KnownImage:
    """An executable file that a process maps, with a known build. ``path`` is where it was on the host.

    Whoever links a file chooses its build-id; ``sha256`` is what the file itself says, empty if nobody has looked.
    """

    path: str
    build_id: str
    size: int
    sha256: str = ""


@dataclass(frozen=True)
class UnknownImage:
    """An executable file that a process maps, without a build-id, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class SamplingFacts:
    """How the dump was sampled. ``interval`` is in bytes, None if the scheme is exact or unknown."""

    scheme: str
    interval: int | None


@dataclass(frozen=True)
class CaptureFacts:
    """All facts of a capture. ``sampling`` is None in format 1, where the dump itself says it.

    ``agent`` comes from sidecar.py or holds a ``problem``; ``jvm`` comes from jvm_heap.py. ``more`` are unknown keys.
    """

    host: str
    unit: str
    dump: DumpFacts
    process: ProcessFacts
    images: tuple[KnownImage | UnknownImage, ...] = ()
    label: str | None = None
    agent: Mapping[str, Any] | None = None
    jvm: Mapping[str, Any] | None = None
    perf_map: Mapping[str, Any] | None = None
    source: str = JEMALLOC
    measure: str = LIVE
    sampling: SamplingFacts | None = None
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def build_ids(self) -> dict[str, str]:
        """Build-ids by mapped path, for images that have one."""
        return {image.path: image.build_id for image in self.images if isinstance(image, KnownImage)}

    @property
    def sums(self) -> dict[str, str]:
        """SHA-256 by build-id, for images whose files were looked at: a profile may know them by other paths."""
        return {image.build_id: image.sha256 for image in self.images if isinstance(image, KnownImage) and image.sha256}

    @property
    def memory(self) -> Mapping[str, Any]:
        """The process's memory as the agent measured it with the dump; empty if it did not."""
        found = (self.agent or {}).get("memory")
        return found if isinstance(found, dict) else {}

    @property
    def others(self) -> sidecar.OthersFacts | None:
        """The unit's other processes, of which there are no dumps; None where they are not known."""
        try:
            return sidecar.OthersFacts.from_json((self.agent or {}).get("others"))
        except sidecar.SidecarError:
            return None

    @property
    def reused(self) -> list[tuple[int, int]]:
        """Ranges of addresses of code where another file's lay earlier."""
        try:
            agent = sidecar.AgentFacts.from_json(self.agent)
        except sidecar.SidecarError:
            return []
        return [sidecar.range_of(one) for one in agent.reused]

    @classmethod
    def from_json(cls, facts: object) -> CaptureFacts:
        """Check and read parsed JSON. Raises CaptureFactsError."""
        if not isinstance(facts, dict) or not _is_count(facts.get("format")) or facts["format"] not in (1, FORMAT):
            raise CaptureFactsError(
                f"the capture's facts are in neither format 1 nor {FORMAT}, the only ones this version can read"
            )
        if not _is_text(facts.get("host")) or not unit_name.is_service(facts.get("unit")):
            raise CaptureFactsError("the capture's facts name no valid host or unit")
        if not _optional(_is_text)(facts.get("label")):
            raise CaptureFactsError("the capture's label is not a text")
        named = DumpFacts(**_part("dump", facts.get("dump"), _DUMP))
        process = ProcessFacts(**_process(facts.get("process")))
        parts = dump_name.parse(named.name)
        if parts is None or process.key.split("-")[0] != str(process.pid) or process.pid != parts.pid:
            raise CaptureFactsError("the capture's process is not the one in the dump's name")
        known: dict[str, Any] = {key: facts.get(key) for key in ("host", "unit", "label")}
        known.update(dump=named, process=process, images=_images(facts.get("images")))
        for key in ("agent", "jvm", "perf_map"):
            known[key] = facts.get(key)
            if not isinstance(known[key], (dict, type(None))):
                raise CaptureFactsError(f"{key} is not a mapping")
        if facts["format"] != 1:
            known.update(_provenance(facts))
        return cls(**known, more={key: facts[key] for key in facts if key not in known and key not in _WRITTEN})

    def to_json(self) -> dict[str, Any]:
        """The contents of capture.json: format 1 if ``sampling`` is None."""
        cmdline = self.process.cmdline
        found: dict[str, Any] = {
            **self.more,
            "format": 1 if self.sampling is None else FORMAT,
            "host": self.host,
            "unit": self.unit,
            "dump": _written(self.dump),
            "process": {**_written(self.process), "cmdline": None if cmdline is None else list(cmdline)},
            "images": [_written_image(image) for image in self.images],
        }
        found.update((key, value) for key in _OPTIONAL if (value := getattr(self, key)) is not None)
        if self.sampling is not None:
            found.update(source=self.source, measure=self.measure, sampling=dict(vars(self.sampling)))
        return found


def is_build_id(value: object) -> bool:
    """Lower-case hex of 4 to 64 bytes."""
    return isinstance(value, str) and bool(_BUILD_ID.match(value))


def sampling_of(head: bytes) -> SamplingFacts:
    """The sampling that a dump's first HEAD bytes declare. jemalloc draws each distance between samples at random."""
    found = _HEAP_V2.match(head)
    interval = int(found.group(1)) if found else 0
    return SamplingFacts("poisson", interval) if interval else SamplingFacts("unknown", None)


_OPTIONAL = ("label", "agent", "jvm", "perf_map")
_WRITTEN = ("format", "source", "measure", "sampling")


def _written(part: DumpFacts | ProcessFacts) -> dict[str, Any]:
    known = dict(vars(part))
    return {**known.pop("more"), **known}


def _written_image(image: KnownImage | UnknownImage) -> dict[str, Any]:
    if isinstance(image, KnownImage):
        return {key: value for key, value in vars(image).items() if value != ""}
    return {"path": image.path, "build_id": None, "size": None, "reason": image.reason}


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        return False
    return not _SURROGATE.search(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_time(value: object) -> bool:
    """What a float can hold; whether a clock can show it is asked where captures arrive and where they are judged."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _matches(pattern: re.Pattern[str]) -> _Check:
    return lambda value: isinstance(value, str) and bool(pattern.match(value))


def _optional(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _is_texts(value: object) -> bool:
    if not isinstance(value, list) or len(value) > _MAX_TEXT:
        return False
    return all(item == "" or _is_text(item) for item in value) and sum(map(len, value)) <= _MAX_TEXT


_DUMP: dict[str, _Check] = {
    "name": lambda value: isinstance(value, str) and dump_name.parse(value) is not None,
    "size": _is_count,
    "sha256": _matches(_SHA256),
    "time": _is_time,
}
_PROCESS: dict[str, _Check] = {
    "pid": _is_count,
    "key": _matches(_KEY),
    "boot_id": _optional(_matches(_BOOT_ID)),
    "start_time": _optional(_is_time),
    "exe": _optional(_is_text),
    "cmdline": _optional(_is_texts),
}
_IMAGE: dict[str, _Check] = {
    "path": _is_text,
    "build_id": _optional(is_build_id),
    "size": _optional(_is_count),
    "sha256": _optional(_matches(_SHA256)),
}
_SAMPLING: dict[str, _Check] = {
    "scheme": lambda value: isinstance(value, str) and value in SCHEMES,
    "interval": _optional(lambda value: _is_count(value) and bool(value)),
}


def _part(name: str, part: object, fields: Mapping[str, _Check]) -> dict[str, Any]:
    """The fields, each checked, and all other keys as ``more``."""
    if not isinstance(part, dict):
        raise CaptureFactsError(f"{name} is not a mapping")
    known = {}
    for key, is_right in fields.items():
        if key not in part or not is_right(part[key]):
            raise CaptureFactsError(f"{name}.{key} is invalid: {reprlib.repr(part.get(key, 'missing'))}")
        known[key] = part[key]
    return {**known, "more": {key: part[key] for key in part if key not in fields}}


def _process(part: object) -> dict[str, Any]:
    known = _part("process", part, _PROCESS)
    return {**known, "cmdline": None if known["cmdline"] is None else tuple(known["cmdline"])}


def _images(found: object) -> tuple[KnownImage | UnknownImage, ...]:
    if not isinstance(found, list) or len(found) > _MAX_IMAGES:
        raise CaptureFactsError(f"images is not a list of at most {_MAX_IMAGES}")
    images = tuple([_image_of(image) for image in found])
    if sum([len(image.path) for image in images]) > _MAX_SUM:
        raise CaptureFactsError("the paths of the images are longer than those of any process")
    return images


def _image_of(found: object) -> KnownImage | UnknownImage:
    if isinstance(found, dict) and {"path", "build_id", "size"} <= set(found):
        values = (found["path"], found["build_id"], found["size"], found.get("reason"), found.get("sha256"))
        if all(isinstance(value, (str, int, type(None))) for value in values):
            return _image(*values)
    known = _part("image", {"sha256": None, **found} if isinstance(found, dict) else found, _IMAGE)
    return _image(known["path"], known["build_id"], known["size"], None, known["sha256"])


# All captures of a process have the same images.
@functools.lru_cache(maxsize=4096, typed=True)
def _image(path: Any, build_id: Any, size: Any, reason: Any, sha256: Any) -> KnownImage | UnknownImage:
    _part("image", {"path": path, "build_id": build_id, "size": size, "sha256": sha256}, _IMAGE)
    if build_id is None:
        if not _is_text(reason):
            raise CaptureFactsError("an image has neither a build-id nor a reason")
        return UnknownImage(path, reason)
    if size is None:
        raise CaptureFactsError("image.size is missing")
    return KnownImage(path, build_id, size, sha256 or "")


def _provenance(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that only format 2 has."""
    if not _matches(_SOURCE)(facts.get("source")):
        raise CaptureFactsError("source is invalid")
    if facts.get("measure") not in MEASURES:
        raise CaptureFactsError(f"measure is not one of {', '.join(MEASURES)}")
    sampling = _part("sampling", facts.get("sampling"), _SAMPLING)
    if SCHEMES[sampling["scheme"]] != (sampling["interval"] is not None):
        raise CaptureFactsError(f"sampling.interval does not fit the scheme {sampling['scheme']}")
    return {
        "source": facts["source"],
        "measure": facts["measure"],
        "sampling": SamplingFacts(sampling["scheme"], sampling["interval"]),
    }
