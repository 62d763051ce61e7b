# SPDX-License-Identifier: GPL-3.0-or-later
# SPDX-FileCopyrightText: Offheap contributors
"""The page on who holds what, from what was seen of each case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.offheap.profiler.tests.holders.cases import CASES, Case

_HEAD = """<!--
SPDX-License-Identifier: GPL-3.0-or-later
SPDX-FileCopyrightText: Offheap contributors
-->
<!-- Written by `make holders`; edit tests/holders/holders_page.py. -->

# Who holds it, in services whose answer is known

What `collect_profiles` says with `heap_collect_holders` of services that hold their blocks in one way each, or lose
them. `make holders` runs them on one booted host of Debian 12, by the playbooks, with a sample each KiB; Python with
`profiled_service_runtime_with: [objects]`. Each has a table of other blocks beside, but those in Java and Python, whose
own memory is enough, and what Debian packages. **true** is what the program does; **said** is the report's line; in
bold what is wrong.

"""


@dataclass
class Part:
    kind: str
    by: str
    low: float
    share: float
    high: float


@dataclass
class Seen:
    """What was said of the path of a case, whose ``samples`` were looked at."""

    unit: str
    day: str
    samples: int
    text: str
    parts: list[Part]

    def is_right(self, case: Case) -> bool:
        """Whether the larger part is what it is, to the rounding of a path that others share; and nothing that is kept
        is said to be lost."""
        lost = sum(part.share for part in self.parts if part.kind == "lost")
        kept = sum(part.share for part in self.parts if case.kept and re.search(case.kept, part.by))
        if case.half:
            of_half = [part for part in self.parts if part.kind == "lost"]
            return bool(of_half) and of_half[0].low <= 0.5 <= of_half[0].high and kept > 0.4
        return kept > 0.75 and not lost if case.kept else lost > 0.9


def page(seen: Sequence[Seen]) -> str:
    """The whole page."""
    by_unit = {one.unit: one for one in seen}
    told = [(case, by_unit[case.unit]) for case in CASES if case.unit in by_unit]
    right = sum(one.is_right(case) for case, one in told)
    called_lost = sum(
        any(part.kind == "lost" for part in one.parts) for case, one in told if case.kept and not case.half
    )
    days = sorted({one.day for _case, one in told})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    lines = [_line(["language", "true", "said"]), _line(["---"] * 3)]
    for case, one in told:
        text = one.text.replace("|", "\\|")
        lines.append(_line([case.language, case.name.replace("_", " "), text if one.is_right(case) else f"**{text}**"]))
    summary = (
        f"Of {len(told)} services, seen on {when}, {right} are told right; of what is kept, {called_lost} are called"
        " lost.\n\n"
    )
    return _HEAD + summary + "".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"
