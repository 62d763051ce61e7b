# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page on published leaks, from what was seen of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.offheap.profiler.tests.real_leaks.leak_languages import Leak
from ansible_collections.offheap.profiler.tests.real_leaks.published import LEAKS

_HEAD = """<!--
SPDX-License-Identifier: GPL-3.0-or-later
SPDX-FileCopyrightText: Offheap contributors
-->
<!-- Written by `make real-leaks`; edit tests/real_leaks/real_leaks_page.py. -->

# Leaks that others published

What the report says of leaks that others found and mended, in packages that people use. `make real-leaks` runs the
leaking version and the fixed one as services on a booted host of Debian 12 (of what Debian itself packages, the fixed
one on a host of Debian 13), each with the load of the upstream report, enables the profiler with a sample each 64 KiB,
waits eight minutes, collects and reports, all by the playbooks.

- **verdict**, **rate**: what the report says, in MiB an hour, with the 95 % interval of sampling.
- **RSS**: what the kernel says of the service meanwhile. A leak of small blocks is larger there, since an allocator
  rounds up.
- **named**: the rank of the first suspect that goes through a function that upstream mended, or through the library
  where that has no symbols, and which it is; - where none does.
- **objects**: that `profiled_service_runtime_with: [objects]` was set, without which Python's objects of up to 512
  bytes are in no profile.
"""
_MIB_PER_HOUR = 24 * (1 << 20)
_COLUMNS = ("registry", "package", "version", "seen", "verdict", "rate", "RSS", "named", "report")


@dataclass
class Said:
    """What the report said of one version. Rates are bytes a day; ``rank`` is 0 where no suspect goes through a
    function that upstream mended. ``held`` says who holds what its path has allocated, where that was asked."""

    verdict: str
    reason: str
    rate: float
    error: float
    rss: float
    rank: int
    path: list[str]
    held: str = ""


@dataclass
class Seen:
    """What was seen of one leak, on which day."""

    name: str
    day: str
    leaking: Said
    fixed: Said


def page(seen: Sequence[Seen]) -> str:
    """The whole page."""
    leaks = {leak.name: leak for leak in LEAKS}
    named = [one for one in seen if one.leaking.verdict in ("leak", "bursts") and 0 < one.leaking.rank <= 2]
    accused = [one for one in seen if one.fixed.verdict in ("leak", "bursts")]
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    for one in seen:
        leak = leaks[one.name]
        lines += [
            _row(leak, leak.leaking, one.day, one.leaking),
            _row(leak, f"{leak.fixed} (fixed)", one.day, one.fixed),
        ]
    return "\n".join(
        [
            _HEAD,
            f"Of {len(seen)} leaks, {len(named)} are named, with a function that upstream mended in the first or second"
            f" suspect; of {len(seen)} fixed versions, {len(accused)} are accused.",
            "",
            *lines,
            "",
            *_not_named([(leaks[one.name], one.leaking.held) for one in seen if one not in named]),
        ]
    )


def _not_named(missed: Sequence[tuple[Leak, str]]) -> list[str]:
    """What is known of why some are not named, as a list; and what the report says of who holds their memory."""
    told = [
        f"- {leak.package} {leak.leaking}: {leak.why_not}.{f' Held, says the report: {held}.' if held else ''}"
        for leak, held in missed
        if leak.why_not
    ]
    return ["Why some are not named:", "", *told, ""] if told else []


def _row(leak: Leak, version: str, day: str, said: Said) -> str:
    rate = named = ""
    if said.verdict in ("leak", "bursts"):
        rate = f"{said.rate / _MIB_PER_HOUR:.0f} ± {said.error / _MIB_PER_HOUR:.0f}"
        function = next((name for name in said.path if re.fullmatch(leak.mended, name)), "")
        named = f"{said.rank}: `{function[:80]}`" if said.rank else "-"
    told = f"[upstream]({leak.report}){', objects' if leak.objects else ''}"
    rss = f"{said.rss / _MIB_PER_HOUR:.0f}"
    return _line([leak.language.registry, leak.package, version, day, said.verdict, rate, rss, named, told])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
