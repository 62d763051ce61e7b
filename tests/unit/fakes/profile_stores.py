# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Servers that keep profiles and answer as Parca and Pyroscope do (parca pkg/parcacol/querier.go, pyroscope
pkg/querier/querier.go and pkg/model/timeseries/range.go): neither can be installed here as a package."""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ansible_collections.offheap.profiler.plugins.plugin_utils.base import profile_proto

KIND = "memory:inuse_space:bytes:space:bytes"
Labels = Mapping[str, str]


def pprof(stacks: Mapping[str, int], taken: float = 0.0) -> bytes:
    """An unpacked profile of live bytes by stack (``inflate;serve``, the leaf first), without its period."""
    profile = profile_proto.profile_class()()
    texts = [""]

    def text(value: str) -> int:
        texts.append(value)
        return len(texts) - 1

    profile.sample_type.add(type=text("inuse_space"), unit=text("bytes"))
    profile.period_type.type, profile.period_type.unit = text("space"), text("bytes")
    profile.time_nanos = int(taken * 1e9)
    numbers: dict[str, int] = {}
    for stack, size in stacks.items():
        sample = profile.sample.add(value=[size])
        for name in stack.split(";"):
            if name not in numbers:
                numbers[name] = len(numbers) + 1
                profile.function.add(id=numbers[name], name=text(name))
                profile.location.add(id=numbers[name]).line.add(function_id=numbers[name])
            sample.location_id.append(numbers[name])
    profile.string_table.extend(texts)
    return bytes(profile.SerializeToString())


class ProfileServer(ThreadingHTTPServer):
    """Keeps (labels, seconds since the epoch, stacks); ``instead`` is answered to any question if it is set."""

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.kept: list[tuple[Labels, float, Mapping[str, int]]] = []
        self.headers: list[Any] = []
        self.instead: tuple[int, bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def matching(self, selector: str, kind: str) -> list[tuple[Labels, float, Mapping[str, int]]]:
        """Those whose labels are as in ``{a="b", c="d"}``."""
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', selector))
        if wanted.pop("__profile_type__", kind) != KIND:
            return []
        return [one for one in self.kept if wanted.items() <= one[0].items()]


class Handler(BaseHTTPRequestHandler):
    server: ProfileServer

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._any(b"")

    def do_POST(self) -> None:
        self._any(self.rfile.read(int(self.headers["Content-Length"])))

    def _any(self, body: bytes) -> None:
        self.server.headers.append(self.headers)
        if self.server.instead:
            self.answer(self.server.instead[1], self.server.instead[0])
        else:
            self.asked(body)

    def asked(self, body: bytes) -> None:
        raise NotImplementedError

    def log_message(self, *_arguments: object) -> None:
        pass


class Parca(Handler):
    def asked(self, body: bytes) -> None:
        place = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(place.query).items()}
        if place.path == "/api/profiles/types":
            keys = ("name", "sampleType", "sampleUnit", "periodType", "periodUnit")
            told: dict[str, Any] = {"types": [dict(zip(keys, KIND.split(":"), strict=True))]}
        elif place.path == "/api/profiles/query_range":
            kind, _brace, selector = asked["query"].partition("{")
            span = [datetime.fromisoformat(asked[name]).timestamp() for name in ("start", "end")]
            series: dict[str, dict[str, Any]] = {}
            for labels, taken, _stacks in self.server.matching(selector, kind):
                if span[0] <= taken <= span[1]:
                    pairs = [{"name": name, "value": value} for name, value in labels.items()]
                    one = series.setdefault(str(pairs), {"labelset": {"labels": pairs}, "samples": []})
                    when = datetime.fromtimestamp(taken, UTC).isoformat(timespec="microseconds")
                    one["samples"].append({"timestamp": when.replace("+00:00", "789Z"), "value": "7"})
            if not series:
                self.answer(b"<html>")  # its page, instead of "not found"
                return
            told = {"series": list(series.values())}
        elif place.path == "/api/profiles/query" and asked["report_type"] == "REPORT_TYPE_PPROF":
            kind, _brace, selector = asked["single.query"].partition("{")
            moment = round(1000 * datetime.fromisoformat(asked["single.time"]).timestamp())
            found = [one for one in self.server.matching(selector, kind) if int(1000 * one[1]) == moment]
            profile = pprof(found[0][2], moment / 1000) if found else b""
            told = {"total": "0", "pprof": base64.b64encode(gzip.compress(profile)).decode()}
        else:
            self.answer(b"<html>")
            return
        self.answer(json.dumps(told).encode())


class Pyroscope(Handler):
    def asked(self, body: bytes) -> None:
        service, _slash, what = self.path.rpartition("/")
        if service != "/querier.v1.QuerierService":
            self.answer(b"404 page not found\n", 404)
        elif what == "SelectMergeProfile":
            asked = profile_proto.message_class("PyroscopeMerge", "string").FromString(body)
            merged: dict[str, int] = {}
            for _labels, taken, stacks in self.server.matching(asked.selector, asked.kind):
                if asked.start <= int(1000 * taken) <= asked.end:
                    merged = {name: merged.get(name, 0) + size for name, size in stacks.items()}
            self.answer(pprof(merged, asked.end / 1000))
        else:
            self.answer(json.dumps(getattr(self, what)(**json.loads(body))).encode())

    def ProfileTypes(self, start: str, end: str) -> dict[str, Any]:
        return {"profileTypes": [{"ID": KIND, "name": "memory"}]}

    def LabelNames(self, start: str, end: str, matchers: list[str]) -> dict[str, Any]:
        (matcher,) = matchers
        names = {name for labels, _taken, _stacks in self.server.matching(matcher, KIND) for name in labels}
        return {"names": sorted({*names, "__session_id__", "__period_type__"})} if names else {}

    def SelectSeries(
        self, start: str, end: str, step: float, profileTypeID: str, labelSelector: str, groupBy: list[str]
    ) -> dict[str, Any]:
        """As RangeSeries: points lie on a grid that begins at ``start``, each after what it counts."""
        assert not any(name.startswith("__") for name in groupBy)
        series: dict[str, dict[str, Any]] = {}
        first, width = int(start), int(1000 * step)
        for labels, taken, _stacks in self.server.matching(labelSelector, profileTypeID):
            moment = int(1000 * taken)
            if first <= moment <= int(end):
                pairs = [{"name": name, "value": labels[name]} for name in groupBy if name in labels]
                points = series.setdefault(str(pairs), {"labels": pairs, "points": []})["points"]
                at = {"timestamp": str(first - (first - moment) // width * width), "value": 7.5}
                if at not in points:
                    points.append(at)
        return {"series": list(series.values())} if series else {}


@contextmanager
def served(handler: type[Handler]) -> Iterator[ProfileServer]:
    """Such a server, while this lasts."""
    with ProfileServer(handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
