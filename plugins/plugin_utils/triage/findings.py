# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""From a directory with a fleet's samples to a verdict for each unit on each host, as data and as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.byte_size import as_text
from ..base.durations import moment
from ..base.printable import printable
from . import growth as memory_growth
from . import host_growth, rules, snapshots
from .growth import Growth
from .look import Process, Sample
from .rules import Diagnosis, Triaged

# Seconds by which hosts that are looked at in one run differ at most.
_OLD = 600.0
_UNWRITTEN = (
    "{} of it was never written, and is resident since the kernel gives huge pages: try madvise in"
    " /sys/kernel/mm/transparent_hugepage/enabled"
)
_HEADINGS = ("UNIT", "HOST", "VERDICT", "RSS", "GROWTH")


@dataclass(frozen=True)
class Finding:
    """The verdict on one unit on one host, by looks of which the last was at ``time`` (seconds since the epoch).

    ``is_old`` says that others were looked at long after it.
    """

    host: str
    growth: Growth
    triaged: Triaged
    time: float = 0.0
    is_old: bool = False

    @property
    def notes(self) -> list[str]:
        """What is worth a look besides the growth."""
        process = self.growth.process
        return [
            *([_UNWRITTEN.format(as_text(process.unwritten))] if process and _is_large(process) else []),
            *([f"this is of {moment(self.time)}, and was not looked at since"] if self.is_old else []),
            *(f"an agent in the JVM is a suspect: {agent}" for agent in (process.agents if process else ())),
            *(f"earlier: {death}" for death in self.growth.deaths),
            *(f"not readable: {what}" for what in (process.not_readable if process else ())),
        ]

    @property
    def data(self) -> dict[str, Any]:
        """For JSON. Rates are bytes per hour."""
        process = self.growth.process
        by_part = {part.value: round(self.growth.per_hour(one.size)) for part, one in self.growth.parts.items()}
        return {
            "unit": self.growth.name,
            "host": self.host,
            "verdict": self.triaged.diagnosis.value,
            "reason": self.triaged.reason,
            "next_step": self.triaged.next_step,
            "source": self.triaged.source,
            "pid": process.pid if process else None,
            "rss": process.rss if process else None,
            "time": self.time,
            "watched": round(self.growth.seconds, 1),
            "growth_bytes_per_hour": round(self.growth.per_hour(self.growth.growth.size)),
            "growth_error": round(self.growth.per_hour(self.growth.growth.error)),
            "growth_by_part": by_part,
            "notes": self.notes,
        }


def _is_large(process: Process) -> bool:
    """Whether what was never written is worth a word, as what malloc keeps free: 32 MiB, and a quarter of the RSS."""
    return process.unwritten >= 32 << 20 and process.unwritten * 4 >= process.rss


def findings(
    directory: Path,
    units: Sequence[str],
    hosts: Sequence[str],
    warn: Callable[[str], None],
    inventories: Sequence[str] = (),
) -> list[Finding]:
    """The verdicts, by unit and host, on these units and hosts (none: all that the directory has); and on hosts whose
    memory goes elsewhere, which no other unit that was looked at explains."""
    samples: dict[str, dict[str, list[Sample]]] = {}
    newest = 0.0
    for host, sample in snapshots.read(directory, warn):
        if not hosts or host in hosts:
            samples.setdefault(host, {}).setdefault(sample.name, []).append(sample)
            if not units or sample.name in units:
                newest = max(newest, sample.arrived)
    found, of_hosts = [], []
    for host, by_unit in sorted(samples.items()):
        looks = []
        growths = {unit: memory_growth.growth(of_unit) for unit, of_unit in by_unit.items()}
        for unit in [unit for unit in by_unit if not units or unit in units]:
            triaged = rules.judge(growths[unit], host, inventories)
            found.append(Finding(host, growths[unit], triaged, *_when(by_unit[unit], newest)))
            looks += by_unit[unit]
        if any(growth.grows for growth in growths.values()):
            continue
        if looks and (judged := host_growth.judge(looks, host, inventories)):
            of_hosts.append(Finding(host, *judged, *_when(looks, newest)))
    return [*sorted(found, key=lambda one: (one.growth.name, one.host)), *of_hosts]


def _when(looks: Sequence[Sample], newest: float) -> tuple[float, bool]:
    """The time of the last look, and whether others came long after it."""
    return max(looks, key=lambda look: look.order).time, newest - max(look.arrived for look in looks) > _OLD


def table(found: Sequence[Finding]) -> list[tuple[Diagnosis | None, str]]:
    """Lines for a terminal, each with the diagnosis that colours it, or None."""
    rows = [
        (
            finding.growth.name,
            printable(finding.host),
            finding.triaged.diagnosis.value,
            as_text(finding.growth.process.rss) if finding.growth.process else "-",
            rules.per_hour(finding.growth, finding.growth.growth) if finding.growth.seconds else "-",
        )
        for finding in found
    ]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    lines: list[tuple[Diagnosis | None, str]] = [(None, _row(_HEADINGS, widths))]
    for row, finding in zip(rows, found, strict=True):
        lines.append((finding.triaged.diagnosis, _row(row, widths)))
        lines.append((None, f"    {printable(finding.triaged.reason)}"))
        if finding.triaged.diagnosis is not Diagnosis.NOT_GROWING:
            lines.append((None, f"    Next: {printable(finding.triaged.next_step)}"))
        lines += [(None, f"    Note: {printable(note)}") for note in finding.notes]
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line, with words aligned left and numbers right."""
    texts = [cell.ljust(width) for cell, width in zip(cells[:3], widths[:3], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[3:], widths[3:], strict=True)]
    return "  ".join([*texts, *numbers]).rstrip()
