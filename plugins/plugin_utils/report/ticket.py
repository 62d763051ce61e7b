# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The report on a fleet as plain text to paste into a ticket."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from ..base.byte_size import as_text
from ..base.printable import printable_lines
from ..model.stack_summary import with_source
from ..triage.rules import Diagnosis

_WIDTH = 100
MOST_SUSPECTS = 5
_MOST_HOSTS = 12
_MOST_FRAMES = 24
_WORDS = {
    "bursts": "grows in bursts",
    "overflows": "fills up beyond its limit",
    "grew": "grew, and has stood since",
    "cannot-tell": "cannot be judged yet",
    "fills-up": "fills up",
    "no-leak": "does not leak",
}


def render(data: Mapping[str, Any]) -> str:
    """The text for a Fleet's data."""
    return printable_lines("\n".join(_lines(data)).rstrip()) + "\n"


def fenced(text: str) -> str:
    """The text as a block of code in Markdown: names from hosts can be links or images, and <int> would be a tag."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}{fence}\n"


def sentence(unit: Mapping[str, Any]) -> str:
    """The main facts about a unit: ``frontend.service leaks 25.1 MiB ± 2.9 MiB to 58.7 MiB ± 4.0 MiB a day on 14 of
    40 hosts``, from the host that leaks least to the one that leaks most."""
    hosts, leaking = len(unit["hosts"]), unit["leaking"]
    if not leaking:
        words = _WORDS[unit["answer"]]
        return f"{unit['unit']} {words} ({_hosts(hosts)})"
    rates = sorted((host["growth"], host["error"]) for host in unit["hosts"] if host["answer"] == "leak")
    least_and_most = [f"{as_text(growth)} ± {as_text(error)}" for growth, error in dict.fromkeys((rates[0], rates[-1]))]
    text = f"{unit['unit']} leaks {' to '.join(least_and_most)} a day on {leaking} of {_hosts(hosts)}"
    if unit["since"] is not None:
        text += f", {'ever since the watch began,' if unit['since_ever'] else 'since about'} {moment(unit['since'])}"
    return text


def moment(time: float) -> str:
    return datetime.fromtimestamp(time, tz=timezone.utc).strftime("%a %Y-%m-%d %H:%M UTC")


def _hosts(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    yield "Native memory report"
    if data["from"] is not None:
        yield f"dumps from {moment(data['from'])} to {moment(data['to'])}"
    for unit in data["units"]:
        yield ""
        yield from _wrapped(sentence(unit), 0)
        for number, suspect in enumerate(unit["suspects"][:MOST_SUSPECTS], 1):
            yield ""
            on = f"on {_hosts(len(suspect['hosts']))}: {', '.join(suspect['hosts'][:_MOST_HOSTS])}"
            more = len(suspect["hosts"]) - _MOST_HOSTS
            yield f"  {number}. {as_text(suspect['growth'])} a day ± {as_text(suspect['error'])} {on}" + (
                f" and {more} more" if more > 0 else ""
            )
            if suspect["label"]:
                yield f"     appeared with version {suspect['label']}"
            frames = map(with_source, suspect["path"], suspect["sources"])
            yield from (f"       {frame}" for frame in islice(frames, _MOST_FRAMES))
            if len(suspect["path"]) > _MOST_FRAMES:
                yield f"       ... {len(suspect['path']) - _MOST_FRAMES} more"
            if held := suspect.get("held"):
                yield from _wrapped(f"{held['text']}. {held['next']}", 5)
            for hint in suspect["hints"]:
                yield from _wrapped(f"Perhaps {hint['title']}: {hint['check']} {hint['link']}", 5)
        yield ""
        width = max(len(host["host"]) for host in unit["hosts"])
        for host in unit["hosts"][:_MOST_HOSTS]:
            yield f"  {host['host']:<{width}}  {host['headline']}: {host['reason']}"
        if len(unit["hosts"]) > _MOST_HOSTS:
            yield f"  ... {len(unit['hosts']) - _MOST_HOSTS} more hosts"
        yield from _memory(unit["hosts"][0])
    yield from _triage(data.get("triage", []))
    yield ""
    yield "± is the 95 % interval. A path's rate is the mean over its hosts."


def _triage(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not findings:
        return
    yield ""
    yield "Triage, growth by kind of memory:"
    for one in findings:
        yield from _wrapped(f"{one['unit']} on {one['host']}: {one['verdict']}. {one['reason']}", 2)
        if one["verdict"] != Diagnosis.NOT_GROWING.value:
            yield f"    Next: {one['next_step']}"  # has commands, to be pasted as they are


def _memory(host: Mapping[str, Any]) -> Iterator[str]:
    known = [dump["memory"] for dump in host["dumps"] if dump["memory"]]
    if not known:
        return
    yield ""
    yield f"  Where the resident memory of {host['host']} is ({as_text(known[-1]['rss'])}):"
    for part in known[-1]["parts"]:
        yield f"    {part['name']:<20} {as_text(part['bytes']):>10}  {part['meaning']}"
    for note in known[-1]["notes"]:
        yield from _wrapped(note, 4)


def _wrapped(text: str, indent: int) -> list[str]:
    """Lines that end between words only: names of units and hosts, and addresses, have hyphens and must stay whole."""
    at = " " * indent
    return textwrap.wrap(
        text, _WIDTH, initial_indent=at, subsequent_indent=at, break_on_hyphens=False, break_long_words=False
    )
