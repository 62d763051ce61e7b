# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The profiles that a server keeps of one process, back as files: from Parca or Grafana Pyroscope, by their queries.

Parca: ``parca.query.v1alpha1`` by its HTTP gateway (github.com/parca-dev/parca, proto/parca/query). Pyroscope:
``querier.v1`` by the Connect protocol (github.com/grafana/pyroscope, api/querier).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from ..base import libraries, profile_proto
from ..base.durations import DAY, LATEST, DurationError, moment, seconds_of
from ..base.printable import printable
from ..base.progress import Progress
from .profile_server import Server, ServerError

# A verdict gains little from more, and each is a question to the server.
_MOST_PROFILES = 48
_MOST_NAMED = 8
# Seconds; clients of Pyroscope send a profile every 15 s or less often.
_STEP = 15.0
_QUERY = re.compile(r"\s*([\w.]+(?::[\w.]+)+)\s*(\{.*\})?\s*", re.DOTALL)
_JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@dataclass(frozen=True)
class Query:
    """Of what, as both servers' pages write it, such as ``memory:inuse_space:bytes:space:bytes{job="frontend"}``, and
    of when (seconds since the epoch)."""

    text: str
    start: float
    end: float

    def parts(self) -> tuple[str, str]:
        """(the type of the profiles, the selector in braces). Raises ServerError."""
        found = _QUERY.fullmatch(self.text)
        if not found:
            raise ServerError(
                f'{self.text!r} is not a query, such as memory:inuse_space:bytes:space:bytes{{job="frontend"}}', True
            )
        return found[1], found[2] or "{}"


class _Store(Protocol):
    def types(self, query: Query) -> list[str]:
        """Those of the kind that the query names."""

    def moments(self, query: Query) -> dict[str, list[float]]:
        """By series, as its labels are told to people: when its profiles were taken."""

    def profile(self, query: Query, taken: float) -> bytes:
        """The one that was taken then, for pprof."""


@contextmanager
def brought(server: Server, text: str, since: str, told: Progress) -> Iterator[list[Path]]:
    """The profiles that match a query, as files for as long as this lasts. ``since`` is when to begin (seconds_of), a
    day ago if it is empty. Raises ControllerError."""
    libraries.require("urllib3", "google.protobuf")
    now = time.time()
    query = Query(text, seconds_of(since) if since else now - DAY, now)
    with tempfile.TemporaryDirectory(prefix="offheap-") as directory:
        yield bring(server, query, Path(directory), told)


def bring(server: Server, query: Query, directory: Path, told: Progress) -> list[Path]:
    """Write the profiles of the one series that matches into files of this directory, at most 48, evenly over its time.

    A file's time is that of its profile. Raises ServerError, also if no series matches or several do: what several
    processes hold together is no basis for a verdict on any.
    """
    server.check()
    kind, _selector = query.parts()
    store = _store(server, query)
    series = {labels: times for labels, times in store.moments(query).items() if times}
    span = f"from {moment(query.start)} to {moment(query.end)}"
    if not series:
        known = store.types(query)
        there = f"; it has profiles of {_some(known)}" if known and kind not in known else ""
        raise ServerError(f"{server.url} has no profiles that match {query.text} {span}{there}", True)
    if len(series) > 1:
        raise ServerError(
            f"{len(series)} series match {query.text}: {_some(sorted(series))}. Name the labels of one: each process is"
            " judged by itself",
            True,
        )
    ((_labels, times),) = series.items()
    chosen = _evenly(sorted(times))
    files = []
    for number, taken in enumerate(chosen, 1):
        told.at(f"{server.url}: profile {number} of {len(chosen)}")
        file = directory / f"{number:03}-{taken:.0f}.pb"
        file.write_bytes(store.profile(query, taken))
        os.utime(file, (taken, taken))
        files.append(file)
    return files


def _store(server: Server, query: Query) -> _Store:
    """Which of both it is: of Parca's paths, Pyroscope has none."""
    parca = _Parca(server)
    try:
        parca.types(query)
    except ServerError as error:
        if error.hopeless and error.status != 404:
            raise
        return _Pyroscope(server)
    return parca


class _Parca:
    def __init__(self, server: Server) -> None:
        self._server = server

    def types(self, _query: Query) -> list[str]:
        found = _listed(self._asked("types", {}), "types")
        keys = ("name", "sampleType", "sampleUnit", "periodType", "periodUnit")
        return [":".join(str(one.get(key, "")) for key in keys) + ":delta" * bool(one.get("delta")) for one in found]

    def moments(self, query: Query) -> dict[str, list[float]]:
        asked = {"query": query.text, "start": _rfc3339(query.start), "end": _rfc3339(query.end)}
        try:
            found = _listed(self._asked("query_range", asked), "series")
        except ServerError as error:
            # What is not found it answers with its page (pkg/server/server.go).
            if error.hopeless and error.status != 404:
                raise
            return {}
        result: dict[str, list[float]] = {}
        for one in found:
            labels = _listed(_object(one.get("labelset") or {}), "labels")
            times = [self._time(sample.get("timestamp")) for sample in _listed(one, "samples")]
            result[_labels(labels)] = times
        return result

    def profile(self, query: Query, taken: float) -> bytes:
        asked = {
            "mode": "MODE_SINGLE_UNSPECIFIED",
            "single.query": query.text,
            "single.time": _rfc3339(taken),
            "report_type": "REPORT_TYPE_PPROF",
        }
        try:
            return base64.b64decode(str(self._asked("query", asked).get("pprof", "")), validate=True)
        except binascii.Error as error:
            raise ServerError(f"{self._server.url} answered no profile: {error}", False) from error

    def _time(self, found: object) -> float:
        """To the millisecond, which is how Parca looks it up."""
        return _seconds(found, lambda text: seconds_of(re.sub(r"(\.\d{3})\d+", r"\1", text)))

    def _asked(self, what: str, asked: Mapping[str, str]) -> dict[str, Any]:
        text = f"?{urlencode(asked)}" if asked else ""
        return _read(self._server, self._server.ask("GET", f"/api/profiles/{what}{text}"))


class _Pyroscope:
    """It merges what a question covers, so each question covers a second in which one profile was taken."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def types(self, query: Query) -> list[str]:
        found = _listed(self._asked("ProfileTypes", query.start, query.end), "profileTypes")
        return [str(one.get("ID", "")) for one in found]

    def moments(self, query: Query) -> dict[str, list[float]]:
        kind, selector = query.parts()
        matcher = f'{{__profile_type__="{kind}"{", " * (selector != "{}")}{selector[1:]}'
        named = self._asked("LabelNames", query.start, query.end, matchers=[matcher]).get("names") or []
        names = [name for name in named if isinstance(name, str) and not name.startswith("__")]
        # Points lie on a grid that begins where the question does: the same each time it is asked.
        return self._series(query, query.start // _STEP * _STEP, query.end, _STEP, names)

    def profile(self, query: Query, taken: float) -> bytes:
        found = [at for times in self._series(query, taken - _STEP, taken, 1, []).values() for at in times]
        end = max(found, default=taken)
        kind, selector = query.parts()
        asked = profile_proto.message_class("PyroscopeMerge", "string")(
            kind=kind, selector=selector, start=int(1000 * end) - 999, end=int(1000 * end)
        )
        headers = {"Content-Type": "application/proto", "Accept": "application/proto"}
        path = "/querier.v1.QuerierService/SelectMergeProfile"
        return self._server.ask("POST", path, headers, body=asked.SerializeToString())

    def _series(
        self, query: Query, start: float, end: float, step: float, names: Sequence[str]
    ) -> dict[str, list[float]]:
        kind, selector = query.parts()
        told = self._asked(
            "SelectSeries", start, end, step=step, profileTypeID=kind, labelSelector=selector, groupBy=names
        )
        result: dict[str, list[float]] = {}
        for one in _listed(told, "series"):
            points = _listed(one, "points")
            times = [_seconds(point.get("timestamp"), lambda text: float(text) / 1000) for point in points]
            result[_labels(_listed(one, "labels"))] = times
        return result

    def _asked(self, what: str, start: float, end: float, **more: Any) -> dict[str, Any]:
        asked = {"start": str(int(1000 * start)), "end": str(int(1000 * end)), **more}
        path = f"/querier.v1.QuerierService/{what}"
        return _read(self._server, self._server.ask("POST", path, _JSON, body=json.dumps(asked).encode()))


def _evenly(times: Sequence[float]) -> list[float]:
    """At most so many, the first and the last among them."""
    if len(times) <= _MOST_PROFILES:
        return list(times)
    return [times[round(place * (len(times) - 1) / (_MOST_PROFILES - 1))] for place in range(_MOST_PROFILES)]


def _read(server: Server, answer: bytes) -> dict[str, Any]:
    try:
        return _object(json.loads(answer))
    except (ValueError, RecursionError) as error:
        raise ServerError(f"{server.url} does not answer as Parca or Pyroscope do: {error}", False) from error


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("its answer is no JSON object")
    return found


def _listed(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects in a list; protobuf's JSON leaves out what is empty."""
    found = answer.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _labels(pairs: Sequence[Mapping[str, Any]]) -> str:
    named = sorted((str(pair.get("name", "")), str(pair.get("value", ""))) for pair in pairs)
    return printable("{" + ", ".join(f'{name}="{value}"' for name, value in named) + "}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return printable(", ".join(names[:_MOST_NAMED])) + more


def _seconds(found: object, read: Callable[[str], float]) -> float:
    """Seconds since the epoch. Raises ServerError."""
    try:
        seconds = read(str(found))
    except (ValueError, DurationError):
        seconds = math.nan
    if not 0 <= seconds <= LATEST:
        raise ServerError(f"the server answered {printable(str(found)[:40])!r} for a time", True)
    return seconds


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
