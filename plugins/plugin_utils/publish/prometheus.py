# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""Growth and totals in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..base import libraries
from ..leaks.ranking import Leak
from ..leaks.watched import Watched, verdict_on_host
from ..model.stack_summary import render as short_path

prometheus_client = libraries.optional("prometheus_client")

_MOST_LEAKS = 50
_Row = tuple[str, Mapping[str, str], float]

#: each metric with what it says
METRICS = {
    "offheap_live_bytes": "Live bytes of the newest dump, estimated by sampling.",
    "offheap_growth_bytes_per_day": "Growth of the suspects or, if there are none, the trend of all live bytes.",
    "offheap_growth_error_bytes_per_day": "Half of the 95 % interval of the growth.",
    "offheap_leak": "1 if the unit leaks, 0 if not; absent if that cannot be told.",
    "offheap_memory_left_bytes": "What the unit's limit, or its host, left of memory at the newest dump.",
    "offheap_newest_dump_timestamp_seconds": "When the newest dump was written.",
    "offheap_suspect_growth_bytes_per_day": "Growth of one suspect on one host.",
    "offheap_suspect_hosts": "Number of hosts that have the suspect.",
}


class _Collected:
    """Metrics in the form that prometheus_client expects of a collector."""

    def __init__(self, families: Sequence[Any]) -> None:
        self._families = families

    def collect(self) -> Sequence[Any]:
        return self._families


def render(leaks: Sequence[Leak], watched: Sequence[Watched]) -> bytes:
    """The file's text: verdict and newest dump of each unit on each host, and the largest suspects."""
    by_host: dict[tuple[str, str], list[Watched]] = {}
    for process in sorted(watched, key=lambda process: process.end):
        by_host.setdefault((process.unit, process.host), []).append(process)
    rows = [row for processes in by_host.values() for row in _of_host(processes)]
    rows += [row for leak in leaks[:_MOST_LEAKS] for row in _of_leak(leak)]
    families: dict[str, Any] = {}
    for name, labels, value in sorted(rows, key=lambda row: list(METRICS).index(row[0])):
        if name not in families:
            families[name] = prometheus_client.metrics_core.GaugeMetricFamily(name, METRICS[name], labels=list(labels))
        families[name].add_metric([_encodable(text) for text in labels.values()], value)
    text: bytes = prometheus_client.generate_latest(_Collected(list(families.values())))
    return text


def _of_host(processes: Sequence[Watched]) -> Iterator[_Row]:
    """``processes`` are those of one unit on one host, the one seen last at the end."""
    last, verdict = processes[-1], verdict_on_host(processes)
    labels = {"unit": last.unit, "host": last.host}
    yield "offheap_live_bytes", labels, last.live
    yield "offheap_newest_dump_timestamp_seconds", labels, last.end
    if last.left is not None:
        yield "offheap_memory_left_bytes", labels, last.left
    if not verdict.answer.is_open:
        yield "offheap_growth_bytes_per_day", labels, verdict.growth
        yield "offheap_growth_error_bytes_per_day", labels, verdict.error
        yield "offheap_leak", labels, float(verdict.answer.leaks)


def _of_leak(leak: Leak) -> Iterator[_Row]:
    # The number tells apart paths that look the same when shortened.
    path = short_path(leak.path)
    for host, rate in leak.hosts.items():
        labels = {"unit": leak.unit, "host": host, "path": path, "suspect": leak.number}
        yield "offheap_suspect_growth_bytes_per_day", labels, rate
    labels = {"unit": leak.unit, "path": path, "suspect": leak.number}
    yield "offheap_suspect_hosts", labels, float(len(leak.hosts))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
